"""
A trainer that is several processes: started, watched and ended together by the first of them.

    trainer-0 ──┬── starts ─▶ trainer-0-rank-1 ─┐
                ├── starts ─▶ trainer-0-rank-2 ─┼─ torch.distributed, over a file in a folder of their own
                └───────────────────────────────┘

They are one node: the broker knows the first. When one dies or is stuck, all end, and the node is started again; so no
rank ever meets one that is somewhere else in the run.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from asyncrl.actor.supervise import Child, describe_exit
from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.client.handshake import Identity
from asyncrl.config.sections import Config, Trainer
from asyncrl.errors import ConfigError, RankDied
from asyncrl.messages import Message, Stop, Welcome
from asyncrl.trainer.ranks.rank_hub import RankHub
from asyncrl.trainer.ranks.ranks import Alone, Group, Ranks

START_S = 120.0
"""For all ranks to start, and import what they need."""
CAUSE_S = 5.0
"""A collective breaks a moment before it is known which process is to blame."""
LEAVE_S = 10.0
"""For the others to leave when the run is over."""
LOOK_S = 1.0
"""Between two looks at who has been silent."""
COLLECTIVE_S = 600.0
"""No rank waits longer for another in a collective. Who is stuck is noticed, and killed, much sooner."""

Tell = Callable[[Message], None]
"""Says something to the other ranks."""


async def with_ranks(
    config: Config, who: Identity, welcome: Welcome, work: Callable[[Callable[[], Ranks], Tell], Awaitable[None]]
) -> None:
    """
    Run ``work`` on the first rank, with the others beside it if there are to be any.

    Args:
        who: The trainer.
        welcome: Passed on to the others.
        work: Given what makes the group, to be called in the thread that loads the model, and how to tell the others.

    Raises:
        RankDied: One of them is gone; says which, and how.
        ConfigError: One of them cannot do what is configured.
        AsyncrlError: What ``work`` raised.
    """
    size = config.trainer.ranks
    if size == 1:
        await work(lambda: Alone(config.trainer.device), lambda _: None)
        return
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="asyncrl-ranks-")))
        hub = ZmqHub(f"ipc://{folder}/crew")
        stack.push_async_callback(hub.aclose)
        crew = RankHub(hub, size=size, welcome=welcome, silence_s=config.broker.node_ttl_s)
        children = [_child(who, rank, hub.address, folder / "store") for rank in range(1, size)]
        for child in children:
            stack.push_async_callback(child.end, LEAVE_S)
            await child.start()
        await _beside(children, crew, _first(crew, folder / "store", config.trainer, work))
        crew.tell(Stop("the run is over"))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(child.wait() for child in children)), LEAVE_S)


def group_of(trainer: Trainer, store: Path, *, rank: int, is_over: Callable[[], bool]) -> Group:
    """
    One rank's end of the group. Waits for the others, unless ``is_over``.

    Raises:
        RankDied: They did not come.
    """
    return Group(store, rank=rank, size=trainer.ranks, timeout_s=COLLECTIVE_S, kind=trainer.device, is_over=is_over)


async def _first(
    crew: RankHub, store: Path, trainer: Trainer, work: Callable[[Callable[[], Ranks], Tell], Awaitable[None]]
) -> None:
    loop = asyncio.get_running_loop()
    is_over = threading.Event()
    with ExitStack() as stack:
        stack.callback(is_over.set)

        def form() -> Group:
            """In the thread that loads the model: the node says meanwhile that it is alive."""
            coming = asyncio.run_coroutine_threadsafe(crew.assembled(START_S), loop)
            stack.callback(coming.cancel)
            coming.result()
            group = group_of(trainer, store, rank=0, is_over=is_over.is_set)
            stack.callback(group.close)
            return group

        await work(form, crew.tell)


async def _beside(children: list[Child], crew: RankHub, work: Awaitable[None]) -> None:
    """Do ``work`` for as long as all children live."""
    working = asyncio.ensure_future(work)
    watching = [asyncio.create_task(_died(child)) for child in children]
    watching.append(asyncio.create_task(_fell_silent(crew)))
    hearing = asyncio.create_task(crew.listen())
    try:
        done, _ = await asyncio.wait({working, *watching}, return_when=asyncio.FIRST_COMPLETED)
        if working in done and not isinstance(working.exception(), RankDied):
            return working.result()
        dead, _ = await asyncio.wait(watching, timeout=CAUSE_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(child.end(0.0) for child in children))  # which ends the collective that waits for them
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


async def _died(child: Child) -> RankDied | ConfigError:
    """Why it ended."""
    code = await child.wait()
    kind = ConfigError if code == ConfigError.exit_code else RankDied
    return kind(f"{child.name} {describe_exit(code)}" + (f": {child.last_line()}" if code > 0 else ""))


async def _fell_silent(crew: RankHub) -> RankDied:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        if loop.time() - due_s > LOOK_S:
            continue  # This loop stood still, and has not heard them yet: they may have spoken all the time.
        try:
            crew.require_all()
        except RankDied as error:
            return error


def _child(who: Identity, rank: int, address: str, store: Path) -> Child:
    name = f"{who.node}-rank-{rank}"
    return Child(name, [sys.executable, "-m", "asyncrl.node.shard", address, name, str(rank), str(store)], None, {})
