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
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.broker.ledger.reader import read_ledger_meta
from asyncrl.config.config import Config, from_json
from asyncrl.errors import AsyncrlError, LedgerError, LinkClosed, LinkError, LinkRefused, MachineLost
from asyncrl.files.access import user_folder
from asyncrl.log import get_logger
from asyncrl.messages.codec import Message
from asyncrl.messages.session import (
    TRAINER_GROUP,
    Beat,
    Bye,
    Draining,
    Reject,
    Stop,
    StoreGet,
    StoreSet,
    StoreValue,
    Welcome,
)
from asyncrl.messages.trainer import Assembled, Disbanded
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.process import why_told
from asyncrl.runtime.ranks import (
    LEAVE_S,
    HubAddress,
    MachinePlace,
    exit_error,
    patience_s,
    start_ranks,
    with_ranks,
)
from asyncrl.runtime.service_manager import service_manager
from asyncrl.runtime.sessions import NodeSession, unless_told
from asyncrl.wire.files import CheckpointSender, fetch_newest
from asyncrl.wire.handshake import Identity, hosted_links, leave
from asyncrl.wire.link import Inbox, Link, OtherCameFirst, unless
from asyncrl.wire.run_address import RunAddress
from asyncrl.workers.child import Child

# ── member link ───────────────────────────────────────────────────────────────────────────────
# Link of a machine of a trainer of several to the broker, for one group of machines.
#
#   link ─▶ Disbanded ─▶ lost             at any time, also while the model is loaded
#        └▶ all others ─▶ receive
#   Bye ─▶ held back until the cause is known that ended the group: the ranks notice a loss before anybody can name it
#   Beat ─▶ repeated while the role sends none, as before its start and after its end

MAX_INBOX_BYTES = 128 << 20


class MemberLink:
    """
    The `Link` of the role that runs on the machine; `leave` ends the session.

    ``lost`` ends with the error when the broker disbands the group.
    """

    def __init__(self, link: Link, beat_s: float) -> None:
        self._link = link
        self._inbox: Inbox[Message] = Inbox(MAX_INBOX_BYTES)
        self._beat = Beat()
        self._was_sent = False
        """True if the role has sent a beat since the last one that was due."""
        self.lost: asyncio.Future[MachineLost] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(task) for task in (self._read(), self._send_beats(beat_s))]

    async def send(self, message: Message, /) -> None:
        if isinstance(message, Beat):
            self._beat, self._was_sent = message, True
        if not isinstance(message, Bye):
            await self._link.send(message)

    async def receive(self) -> Message:
        return await self._inbox.get()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over `receive` until the link is closed."""
        with suppress(LinkClosed):
            while True:
                yield await self.receive()

    async def aclose(self) -> None:
        """Does nothing: `leave` closes the link."""

    async def leave(self, reason: str) -> None:
        """Say Bye, and close the link."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await leave(self._link, reason)

    async def _read(self) -> None:
        try:
            while True:
                match message := await self._link.receive():
                    case Disbanded(reason=reason):
                        if not self.lost.done():
                            self.lost.set_result(MachineLost(reason))
                    case Reject(reason=reason):
                        raise LinkRefused(reason)
                    case _:
                        self._inbox.put(message, 0)
        except LinkError as error:
            self._inbox.fail(error)

    async def _send_beats(self, beat_s: float) -> None:
        while True:
            await asyncio.sleep(beat_s)
            if not self._was_sent:
                await self._link.send(self._beat)
            self._was_sent = False


# ── checkpoint folder ─────────────────────────────────────────────────────────────────────────
# Folder of a trainer's checkpoints: in the run directory where that is visible, otherwise in this machine's own
# state.
#
#     RUN/checkpoints                                        this machine sees the run directory, and it is this run's
#     $XDG_STATE_HOME/asyncrl/runs/RUN_ID/checkpoints        it does not


def checkpoint_folder(welcome: Welcome, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder, which need not exist. A run without an identity has it in its run directory."""
    directory = RunDirectory(Path(welcome.run_dir))
    if not welcome.run_id or _holds(directory, welcome.run_id):
        return shared_folder(welcome)
    state = user_folder("state", environment) or Path("/.local/state")
    return state / "asyncrl" / "runs" / welcome.run_id / "checkpoints"


def shared_folder(welcome: Welcome) -> Path:
    """The folder in the run directory, on the broker's machine."""
    return RunDirectory(Path(welcome.run_dir)).checkpoints


def _holds(directory: RunDirectory, run_id: str) -> bool:
    """True if the ledger in a directory is that of a run."""
    try:
        return directory.ledger.is_file() and read_ledger_meta(directory.ledger).run_id == run_id
    except (LedgerError, OSError):  # Not readable here: a directory of the same path on another machine.
        return False


# ── checkpoint copies ─────────────────────────────────────────────────────────────────────────
# Checkpoints of a trainer whose machine does not see the run directory: from the broker's machine, and to it.
#
#     no checkpoint here as new as there     fetched before the ranks start
#     a checkpoint written                   copied before its steps count as saved

log = get_logger()


async def fetch_checkpoint(welcome: Welcome, run: RunAddress, who: Identity) -> None:
    """
    Fetch the newest checkpoint of the broker's machine if this one has none as new.

    Raises:
        LinkError, RunFailed: It cannot be fetched, or not be stored.
    """
    folder, shared = checkpoint_folder(welcome), shared_folder(welcome)
    if folder != shared and (connect := hosted_links(welcome.spools, who, run, ".checkpoint")):
        link = connect()
        try:
            await fetch_newest(link, str(shared), folder)
        finally:
            await link.aclose()


def checkpoint_sender(folder: Path, welcome: Welcome, run: RunAddress, who: Identity) -> CheckpointSender | None:
    """Sender of the checkpoints in this machine's ``folder``; None if they need not, or cannot, be sent."""
    if not from_json(welcome.config).checkpoint.copy_to_broker or folder == shared_folder(welcome):
        return None
    if (connect := hosted_links(welcome.spools, who, run, ".checkpoints")) is None:
        log.warning("checkpoint.stays", folder=str(folder), cause="broker.spool is false: no spool takes a copy of it")
        return None
    return CheckpointSender(folder, connect)


# ── machines ──────────────────────────────────────────────────────────────────────────────────

DRAIN_S = 60.0
"""Time limit to finish the step in training and to save a checkpoint, before the trainer leaves."""
HUB = "hub"
"""Key of the `HubAddress`."""


SessionWork = Callable[..., Awaitable[None]]
"""Takes a `NodeSession`, and by keyword what `FirstRankWork` takes."""


async def train_together(session: NodeSession, interface: str, work: SessionWork) -> None:
    """
    Take part in one group of machines: as its first with ``work``, otherwise with ranks that follow the first.

    Args:
        interface: See `MachinePlace`.
        work: Takes the session over the link of the group, and is then the `FirstRankWork` of `with_ranks`.

    Raises:
        MachineLost: The group has ended because of another machine.
        RankDied, ConfigError: A rank of this machine ended.
        LinkError: The broker is lost.
        ToldToStop: The node was told to stop while this machine waited for the others.
        AsyncrlError: Raised by ``work``.
    """
    member, reason, stopping = MemberLink(session.link, session.welcome.beat_s), "done", session.stopping
    try:
        if assembled := await unless_told(stopping, _assembled(member, session.config)):
            await _train(session, member, assembled, interface, work)
    except AsyncrlError as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        await member.leave(why_told(stopping) if stopping.is_set() else reason)


async def _train(
    session: NodeSession, link: MemberLink, assembled: Assembled, interface: str, work: SessionWork
) -> None:
    index = [machine.node for machine in assembled.machines].index(session.who.node)
    place = MachinePlace(assembled.machines, index, session.config.trainer.ranks, interface)
    if index:
        await _follow(link, session, place, assembled.group)
        return

    async def announce(hub: HubAddress) -> None:
        await link.send(StoreSet(f"{TRAINER_GROUP}{assembled.group}", HUB, msgspec.msgpack.encode(hub)))

    fetching = fetch_checkpoint(session.welcome, session.run, session.who)
    await unless_told(session.stopping, _unless_lost(link, fetching))
    await with_ranks(session, partial(work, session.over(link)), place, announce=announce, lost=link.lost)


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


async def _follow(link: MemberLink, session: NodeSession, place: MachinePlace, group: int) -> None:
    """
    Run the ranks of a machine that is not the first, until the run or the group is over.

    If this machine is told to stop, the group ends once its steps are saved, or this machine leaves after `DRAIN_S`.
    """
    with suppress(OtherCameFirst):
        try:
            await unless(_drain(link, session.stopping), _unless_lost(link, _run_ranks(link, session, place, group)))
        except MachineLost:
            if not session.stopping.is_set():
                raise


async def _drain(link: Link, stopping: asyncio.Event) -> None:
    await stopping.wait()
    await link.send(Draining())
    await asyncio.sleep(DRAIN_S)


async def _run_ranks(link: Link, session: NodeSession, place: MachinePlace, group: int) -> None:
    """Run this machine's ranks to their end. They are killed if one of them fails, or the broker is lost."""
    await link.send(StoreGet(f"{TRAINER_GROUP}{group}", HUB))
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
