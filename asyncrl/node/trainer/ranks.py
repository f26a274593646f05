"""
Ranks of one machine of a trainer: child processes, and on the first machine this process, which is rank 0.

    trainer-0 ──┬── starts ─▶ trainer-0-rank-1 ─┐
     = rank 0   ├── starts ─▶ trainer-0-rank-2 ─┼─ torch.distributed; they meet through the hub of rank 0
                └───────────────────────────────┘

`asyncrl.node.trainer.machines` has the ranks of other machines. If a rank dies or hangs, all ranks end, so ranks never
disagree on the progress of the run.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from asyncrl.actor.sockets.curve import hub_keys_of, needs_keys
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.actor.supervise import Child, describe_exit
from asyncrl.config.addresses import tcp
from asyncrl.config.config import Config
from asyncrl.errors import ConfigError, LinkError, MachineLost, RankDied
from asyncrl.files.secret_file import new_secret, write_secret
from asyncrl.messages.session import Stop
from asyncrl.messages.wire import CODEC
from asyncrl.node.process.process import exit_unless_cancelled
from asyncrl.node.trainer.first_rank import FirstRank, Work
from asyncrl.node.trainer.place import HubAddress, Place, RankPlace, Session
from asyncrl.trainer.ranks.rank_hub import NoOtherRanks, RankHub
from asyncrl.trainer.ranks.rank_store import rank_store
from asyncrl.trainer.ranks.ranks import SingleRank

CAUSE_S = 5.0
"""Time to find the dead rank after a collective failed: the collective fails first."""
LEAVE_S = 10.0
"""Time for the other ranks to exit when the run is over."""
MARGIN_S = 2.0
"""Time for which a silent rank of another machine is left to the broker, which sees if all of the machine is lost."""
CHECK_S = 1.0
"""Interval between checks for silent ranks."""
Failure = RankDied | ConfigError


async def with_ranks(
    session: Session,
    work: Work,
    place: Place,
    *,
    announce: Callable[[HubAddress], Awaitable[None]] | None = None,
    lost: Awaitable[MachineLost] | None = None,
) -> None:
    """
    Run ``work`` as the first rank, and start and end the other ranks of this machine around it.

    Args:
        announce: Called with the address of the hub that the ranks of other machines join.
        lost: Ends with the error when the group of machines ends; None if there is only one.

    Raises:
        MachineLost: The group has ended because of another machine.
        RankDied: Another rank of this machine died or hung; names it and the cause.
        ConfigError: Another rank cannot run the configuration.
        AsyncrlError: Raised by ``work``.
    """
    config = session.config
    if place.size == 1 and lost is None:
        await work(lambda: SingleRank(config.trainer.device), NoOtherRanks())
        return
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="asyncrl-ranks-"))
        secret = new_secret()
        hub = ZmqHub(_bind(session, place, folder), CODEC, keys=hub_keys_of(secret))
        stack.push_async_callback(hub.aclose)
        silence_s = config.broker.node_ttl_s + (MARGIN_S if lost else 0.0)
        rank_hub = RankHub(hub, names=place.names[1:], welcome=session.welcome, silence_s=silence_s)
        address = HubAddress(hub.address, secret)
        children = await start_ranks(stack, session, place, address, leave_s=LEAVE_S)
        if announce:
            await announce(address)
        meeting = hub.connect_local(f"{session.who.peer}.store")
        timeout_s = config.trainer.collective_timeout_s
        store = await stack.enter_async_context(rank_store(meeting, place.labels, timeout_s))
        kind = RankDied if lost is None else MachineLost
        patience = patience_s(config, place)
        watching = [exit_error(child, patience) for child in children]
        watching += [_silence_error(rank_hub, kind), *([_result(lost)] if lost else [])]
        rank_place = RankPlace(0, 0, place.size, session.interface, session.run.broker)
        first_rank = FirstRank(rank_hub, store, config.trainer, rank_place, work)
        hearing = asyncio.create_task(rank_hub.listen())
        try:
            await _while_ranks_live(first_rank, watching, children, lambda error: kind(str(error)), patience)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        rank_hub.broadcast(Stop("the run is over"))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(child.wait() for child in children)), LEAVE_S)


async def start_ranks(
    stack: AsyncExitStack, session: Session, place: Place, hub: HubAddress, *, leave_s: float
) -> list[Child]:
    """Start all ranks of this machine except rank 0, to join ``hub``; ``stack`` ends them."""
    secret_file = ""
    if needs_keys(hub.address):
        secret_file = f"{stack.enter_context(TemporaryDirectory(prefix='asyncrl-ranks-'))}/secret"
        write_secret(Path(secret_file), hub.secret)
    children = []
    for local_rank, rank in enumerate(place.own):
        if rank:
            name = place.names[rank]
            own = RankPlace(
                rank, local_rank, place.size, session.interface, session.run.broker, secret_file, dict(session.copies)
            )
            where = msgspec.json.encode(own).decode()
            command = [sys.executable, "-m", "asyncrl.node.trainer.shard", hub.address, name, where]
            children.append(Child(name, command, None, session.run.environment()))
    for child in children:
        stack.push_async_callback(child.end, leave_s)
        await child.start()
    return children


def patience_s(config: Config, place: Place) -> float:
    """Seconds to find out who is gone, after a rank noticed that one is: the time after which a machine is lost."""
    return CAUSE_S + (config.broker.node_ttl_s if len(place.machines) > 1 else 0.0)


async def exit_error(
    child: Child, patience_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Failure:
    """Wait for the exit of a rank, and return it as an error. One that left because of another leaves it time."""
    code = await child.wait()
    if code in (RankDied.exit_code, LinkError.exit_code):
        await sleep(patience_s)
    kind = ConfigError if code == ConfigError.exit_code else RankDied
    return kind(f"{child.name} {describe_exit(code)}" + (f": {child.last_line()}" if code > 0 else ""))


def _bind(session: Session, place: Place, folder: str) -> str:
    """Address for the hub: a TCP port if there are other machines, which a broker at a unix socket cannot have."""
    if len(place.machines) == 1 or not needs_keys(session.run.broker):
        return f"ipc://{folder}/hub"
    return tcp(session.interface, 0)


async def _while_ranks_live(
    first_rank: FirstRank,
    watching: Sequence[Coroutine[object, object, Failure]],
    children: Sequence[Child],
    unnamed: Callable[[BaseException | None], Failure],
    patience_s: float,
) -> None:
    """
    Run the first rank, and end all ranks as soon as one dies.

    Args:
        watching: Each ends with an error when a rank has died.
        unnamed: Makes the error if only the `RankDied` of the first rank is known after ``patience_s``.

    Raises:
        RankDied, ConfigError: A rank ended; takes precedence over the resulting `RankDied` of the first rank.
    """
    working = asyncio.create_task(first_rank.run())
    watchers = [asyncio.create_task(watcher) for watcher in watching]
    try:
        done, _ = await asyncio.wait({working, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        if working in done and not isinstance(working.exception(), RankDied):
            return working.result()
        dead, _ = await asyncio.wait(watchers, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        error = dead.pop().result() if dead else unnamed(working.exception())
        await asyncio.gather(*(child.end(0.0) for child in children))
        await _leave_collectives(first_rank, working, error)
        raise error
    finally:
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


async def _leave_collectives(first_rank: FirstRank, working: "asyncio.Task[None]", error: Failure) -> None:
    """Wait for the end of ``working``; end this process if a library does not let go of its thread."""
    timer = exit_unless_cancelled(error)
    first_rank.abort(str(error))
    working.cancel()
    with suppress(asyncio.CancelledError, RankDied):
        await working
    timer.cancel()


async def _result(lost: Awaitable[MachineLost]) -> Failure:
    return await lost


async def _silence_error(rank_hub: RankHub, kind: type[RankDied]) -> Failure:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + CHECK_S
        await asyncio.sleep(CHECK_S)
        if loop.time() - due_s > CHECK_S:
            continue  # This loop was blocked: messages of the ranks may be waiting unread.
        try:
            rank_hub.require_all()
        except RankDied as error:
            return kind(str(error))
