"""
One machine of a trainer of several, for as long as one group of machines trains.

    machine a          broker                    machine b
    Hello ────────────▶  │ ◀───────────────────── Hello          as `trainer`, in any order
                         │                                       all are there, or enough of them for long enough
    Assembled ◀───────── │ ─────────────────────▶ Assembled      the machines in order: a is the first
    StoreSet hub ──────▶ │ ◀───────────────────── StoreGet hub   rank 0's hub, on a's route to the broker; its secret
                         │ ─────────────────────▶ StoreValue
    rank 0 in this process, rank 1 ◀─── Hello, StoreSet, StoreGet ─── ranks 2 and 3, children of b
    Take, Commit ──────▶ │                                       from a alone: its session is the run's trainer
                         │     ✗ b falls silent, or says Bye
    Disbanded ◀───────── │ ─────────────────────▶ Disbanded      names b, its host and its ranks
    Hello ────────────▶  │ ◀───────────────────── Hello          again: ranks start at the newest checkpoint
                         │ ◀───────────────────── Draining       b is told to stop: before that,
    Draining ──────────▶ │                                       a saves a checkpoint
    Disbanded ◀───────── │ ─────────────────────▶ Disbanded

The first machine fetches the newest checkpoint of the broker's machine before ranks start, if it has none as new. The
broker ends all sessions of a group in one decision, before it tells anybody: a machine that has not heard of it is
no trainer any more, and nothing that it sends counts.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.actor.link import Link
from asyncrl.actor.supervise import Child
from asyncrl.actor.waiting import OtherCameFirst, unless
from asyncrl.checks.permissions import TRAINER_GROUP
from asyncrl.client.handshake import Identity, hello
from asyncrl.config.config import Config
from asyncrl.errors import AsyncrlError, MachineLost
from asyncrl.messages.session import Draining, Hello, Stop, StoreGet, StoreSet, StoreValue
from asyncrl.messages.trainer import Assembled
from asyncrl.node.process.service_manager import service_manager
from asyncrl.node.runner import unless_told
from asyncrl.node.trainer.checkpoint_copies import fetch_checkpoint
from asyncrl.node.trainer.first_rank import Work
from asyncrl.node.trainer.member_link import MemberLink
from asyncrl.node.trainer.place import HubAddress, Place, Session
from asyncrl.node.trainer.ranks import LEAVE_S, exit_error, patience_s, start_ranks, with_ranks

DRAIN_S = 60.0
"""Time limit to finish the step in training and to save a checkpoint, before the trainer leaves."""
HUB = "hub"
"""Key of the `HubAddress`."""


def machine_hello(who: Identity) -> Hello:
    """`Hello` with the name of this machine."""
    return replace(hello(who), host=socket.gethostname())


async def train_together(session: Session, link: Link, work: Callable[[Link], Work], stopping: asyncio.Event) -> None:
    """
    Take part in one group of machines: as its first with ``work``, otherwise with ranks that follow the first.

    Raises:
        MachineLost: The group has ended because of another machine.
        RankDied, ConfigError: A rank of this machine ended.
        LinkError: The broker is lost.
        ToldToStop: ``stopping`` was set while this machine waited for the others.
        AsyncrlError: Raised by ``work``.
    """
    member, reason = MemberLink(link, session.welcome.beat_s), "done"
    try:
        if assembled := await unless_told(stopping, _assembled(member, session.config)):
            await _train(session, member, assembled, work, stopping)
    except AsyncrlError as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        await member.leave("told to stop" if stopping.is_set() else reason)


async def _train(
    session: Session, link: MemberLink, assembled: Assembled, work: Callable[[Link], Work], stopping: asyncio.Event
) -> None:
    place = _place(assembled, session)
    if place.index:
        await _follow(link, session, place, assembled.group, stopping)
        return

    async def announce(hub: HubAddress) -> None:
        await link.send(StoreSet(_rendezvous(assembled.group), HUB, msgspec.msgpack.encode(hub)))

    fetching = fetch_checkpoint(session.welcome, session.run, session.who)
    await unless_told(stopping, _unless_lost(link, fetching))
    await with_ranks(session, work(link), place, announce=announce, lost=link.lost)


async def _unless_lost(link: MemberLink, waiting: Awaitable[None]) -> None:
    """Await ``waiting``; raises `MachineLost` as soon as the group has ended."""
    try:
        await unless(asyncio.shield(link.lost), waiting)
    except OtherCameFirst:
        raise link.lost.result() from None


async def _assembled(link: Link, config: Config) -> Assembled | None:
    """Wait until the machines are complete; None if the run is over."""
    service_manager().waiting(f"waiting for the trainer's {config.trainer.nodes} machines")
    while True:
        match await link.receive():
            case Assembled() as assembled:
                return assembled
            case Stop():
                return None


def _place(assembled: Assembled, session: Session) -> Place:
    index = [machine.node for machine in assembled.machines].index(session.who.node)
    return Place(assembled.machines, index, session.config.trainer.ranks)


async def _follow(link: MemberLink, session: Session, place: Place, group: int, stopping: asyncio.Event) -> None:
    """
    Run the ranks of a machine that is not the first, until the run or the group is over.

    If ``stopping`` is set, the group ends once its steps are saved, or this machine leaves after `DRAIN_S`.
    """
    with suppress(OtherCameFirst):
        try:
            await unless(_drain(link, stopping), _unless_lost(link, _run_ranks(link, session, place, group)))
        except MachineLost:
            if not stopping.is_set():
                raise


async def _drain(link: Link, stopping: asyncio.Event) -> None:
    await stopping.wait()
    await link.send(Draining())
    await asyncio.sleep(DRAIN_S)


async def _run_ranks(link: Link, session: Session, place: Place, group: int) -> None:
    """Run this machine's ranks to their end. They are killed if one of them fails, or the broker is lost."""
    await link.send(StoreGet(_rendezvous(group), HUB))
    if (hub := await _hub(link)) is None:
        return
    async with AsyncExitStack() as stack:
        children = await start_ranks(stack, session, place, hub, leave_s=0.0)
        service_manager().ready(lambda: f"ranks {place.own[0]} to {place.own[-1]} of {place.size}", stop_s=DRAIN_S)
        ends = asyncio.gather(*(_end(child, patience_s(session.config, place)) for child in children))
        stop = asyncio.create_task(_stopped(link))
        both: list[asyncio.Future[Any]] = [ends, stop]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                stop.result()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ends, LEAVE_S)
            else:
                ends.result()
        finally:
            ends.cancel()
            stop.cancel()
            await asyncio.gather(ends, stop, return_exceptions=True)


async def _hub(link: Link) -> HubAddress | None:
    """Wait for the announcement of rank 0's hub; None if the run is over."""
    while True:
        match await link.receive():
            case StoreValue(value=value):
                return msgspec.msgpack.decode(value, type=HubAddress)
            case Stop():
                return None


async def _stopped(link: Link) -> None:
    while not isinstance(await link.receive(), Stop):
        pass


async def _end(child: Child, patience_s: float) -> None:
    """Wait for the end of a rank; raises its error if it failed."""
    if await child.wait():
        raise await exit_error(child, patience_s)


def _rendezvous(group: int) -> str:
    return f"{TRAINER_GROUP}{group}"
