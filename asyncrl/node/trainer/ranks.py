"""
Ranks of a multi-process trainer: the first process starts, monitors and ends the others.

    trainer-0 ──┬── starts ─▶ trainer-0-rank-1 ─┐
                ├── starts ─▶ trainer-0-rank-2 ─┼─ torch.distributed, over a file in a folder of their own
                └───────────────────────────────┘

The ranks are one node: the broker knows only the first. If a rank dies or hangs, all ranks end and the node is
restarted, so ranks never disagree on the progress of the run.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from asyncrl.actor.message import Message
from asyncrl.actor.supervise import Child, describe_exit
from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.client.handshake import Identity
from asyncrl.config.sections import Config, Trainer
from asyncrl.errors import ConfigError, RankDied
from asyncrl.messages import CODEC, Stop, Welcome
from asyncrl.trainer.ranks.rank_hub import RankHub
from asyncrl.trainer.ranks.ranks import RankGroup, Ranks, SingleRank

START_S = 120.0
"""Time for all ranks to start and import their libraries."""
CAUSE_S = 5.0
"""Time to find the dead rank after a collective failed: the collective fails first."""
LEAVE_S = 10.0
"""Time for the other ranks to exit when the run is over."""
CHECK_S = 1.0
"""Interval between checks for silent ranks."""
COLLECTIVE_S = 600.0
"""Timeout of a collective. A hung rank is detected, and killed, much sooner."""

Broadcast = Callable[[Message], None]
"""Sends a message to the other ranks."""
Work = Callable[[Callable[[], Ranks], Broadcast], Awaitable[None]]
"""The first rank's part: takes a function that forms the group, to be called on the thread that loads the model."""


async def with_ranks(config: Config, who: Identity, welcome: Welcome, work: Work) -> None:
    """
    Run ``work`` as the first rank, and start and end the other ranks around it; they get the same ``welcome``.

    Raises:
        RankDied: Another rank died or hung; names it and the cause.
        ConfigError: Another rank cannot run the configuration.
        AsyncrlError: Raised by ``work``.
    """
    size = config.trainer.ranks
    if size == 1:
        await work(lambda: SingleRank(config.trainer.device), lambda _: None)
        return
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="asyncrl-ranks-")))
        hub = ZmqHub(f"ipc://{folder}/hub", CODEC)
        stack.push_async_callback(hub.aclose)
        rank_hub = RankHub(hub, size=size, welcome=welcome, silence_s=config.broker.node_ttl_s)
        children = [_child(who, rank, hub.address, folder / "store") for rank in range(1, size)]
        for child in children:
            stack.push_async_callback(child.end, LEAVE_S)
            await child.start()
        first_rank = _run_first_rank(rank_hub, folder / "store", config.trainer, work)
        await _while_ranks_live(children, rank_hub, first_rank)
        rank_hub.broadcast(Stop("the run is over"))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(child.wait() for child in children)), LEAVE_S)


def rank_group(trainer: Trainer, store: Path, *, rank: int, is_over: Callable[[], bool]) -> RankGroup:
    """Join the group of all ranks; raises `RankDied` if one does not join before ``is_over``."""
    return RankGroup(store, rank=rank, size=trainer.ranks, timeout_s=COLLECTIVE_S, kind=trainer.device, is_over=is_over)


async def _run_first_rank(rank_hub: RankHub, store: Path, trainer: Trainer, work: Work) -> None:
    loop = asyncio.get_running_loop()
    is_over = threading.Event()
    with ExitStack() as stack:
        stack.callback(is_over.set)

        def form() -> RankGroup:
            all_joined = asyncio.run_coroutine_threadsafe(rank_hub.wait_for_all(START_S), loop)
            stack.callback(all_joined.cancel)
            all_joined.result()
            group = rank_group(trainer, store, rank=0, is_over=is_over.is_set)
            stack.callback(group.close)
            return group

        await work(form, rank_hub.broadcast)


async def _while_ranks_live(children: list[Child], rank_hub: RankHub, work: Awaitable[None]) -> None:
    """
    Await ``work``, and end all ranks as soon as one dies.

    Raises:
        RankDied, ConfigError: A rank ended; takes precedence over the `RankDied` that ``work`` raises as a result.
    """
    working = asyncio.ensure_future(work)
    watching = [asyncio.create_task(_exit_error(child)) for child in children]
    watching.append(asyncio.create_task(_silence_error(rank_hub)))
    hearing = asyncio.create_task(rank_hub.listen())
    try:
        done, _ = await asyncio.wait({working, *watching}, return_when=asyncio.FIRST_COMPLETED)
        if working in done and not isinstance(working.exception(), RankDied):
            return working.result()
        dead, _ = await asyncio.wait(watching, timeout=CAUSE_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(child.end(0.0) for child in children))  # also ends a collective that waits for them
        working.cancel()
        with suppress(asyncio.CancelledError, RankDied):
            await working
        if dead:
            raise dead.pop().result()
        return working.result()
    finally:
        for task in (*watching, hearing):
            task.cancel()
        await asyncio.gather(*watching, hearing, return_exceptions=True)


async def _exit_error(child: Child) -> RankDied | ConfigError:
    """Wait for the exit of a rank, and return it as an error."""
    code = await child.wait()
    kind = ConfigError if code == ConfigError.exit_code else RankDied
    return kind(f"{child.name} {describe_exit(code)}" + (f": {child.last_line()}" if code > 0 else ""))


async def _silence_error(rank_hub: RankHub) -> RankDied:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + CHECK_S
        await asyncio.sleep(CHECK_S)
        if loop.time() - due_s > CHECK_S:
            continue  # This loop was blocked: messages of the ranks may be waiting unread.
        try:
            rank_hub.require_all()
        except RankDied as error:
            return error


def _child(who: Identity, rank: int, address: str, store: Path) -> Child:
    name = f"{who.node}-rank-{rank}"
    return Child(
        name, [sys.executable, "-m", "asyncrl.node.trainer.shard", address, name, str(rank), str(store)], None, {}
    )
