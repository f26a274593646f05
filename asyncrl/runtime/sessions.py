"""
A role of a run in this process: it joins the broker, joins it again when it was lost, and ends with the run.

    async with node.part_of_run(stopping):          finds the broker; ends when the run is over, or a signal came
        async for session in node.sessions():       Hello ─▶ Welcome; and again after a restart of the broker
            async with session:                     a lost broker ends the session, and another one begins
                await session.serve(actor)          beats, status, metrics; drains, says Bye
"""

import asyncio
import gc
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import copy
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from asyncrl.broker.nodes.standstill import Standstill
from asyncrl.config.config import Config, from_json
from asyncrl.config.sections.broker import Broker
from asyncrl.errors import (
    AsyncrlError,
    ConfigError,
    LinkClosed,
    LinkError,
    LinkRefused,
    LinkReset,
    LinkSilent,
    MachineLost,
    NodeStalled,
    ToldToLeave,
    UnknownKey,
    WrongHub,
)
from asyncrl.files.lock import is_locked
from asyncrl.log import about, get_logger
from asyncrl.messages.codec import Message
from asyncrl.messages.session import AskTurn, Asleep, Beat, Hello, Reject, Sleep, Stop, Wake, Welcome
from asyncrl.records.metrics import Sample
from asyncrl.records.metrics_targets import belongs_to, read_from
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.machine import Cores, OwnCores, machine_use, memory_stall
from asyncrl.runtime.model_files import with_copies
from asyncrl.runtime.process import StopEvent, exit_unless_cancelled, why_told
from asyncrl.runtime.service_manager import service_manager
from asyncrl.wire.handshake import (
    Connection,
    Identity,
    hello,
    identity,
    join,
    leave,
    send_beats,
    spool_links,
    unknown_key,
)
from asyncrl.wire.link import Link, OtherCameFirst, unless
from asyncrl.wire.run_address import POLL_S, RunAddress
from asyncrl.wire.zmq_link import ZmqLink

log = get_logger()

REJOIN_PAUSES_S = (0.1, 0.5, 2.0, 10.0)
"""Seconds before each further handshake with a broker that restarts again and again; the last one repeats."""

RENEWAL_S = 3.0
"""Time that a broker of another run takes, from the first connection on, to leave its secret in place of an old one."""

Loaded = TypeVar("Loaded")


class ToldToStop(Exception):
    """The process was told to stop while it waited for the broker, and holds no work."""


async def unless_told(stopping: asyncio.Event, waiting: Awaitable[Loaded]) -> Loaded:
    """Await ``waiting``; raises `ToldToStop` as soon as ``stopping`` is set."""
    try:
        return await unless(stopping.wait(), waiting)
    except OtherCameFirst:
        raise ToldToStop from None


class Actor(Protocol):
    """Interface of every role's actor."""

    async def run(self) -> None:
        """Serve until the broker sends Stop."""

    def heartbeat(self, lag_s: float, /) -> Beat:
        """The next heartbeat, given the delay of the event loop in seconds."""

    def status(self) -> str:
        """Progress in a few words, for the service manager."""

    def metrics(self) -> Iterable[Sample]:
        """Values of its metrics now, for a scrape."""


async def serve(
    actor: Actor,
    link: Link,
    *,
    beat_s: float,
    stopping: asyncio.Event,
    drain: Callable[[float], Awaitable[object]] | None = None,
    drain_s: float = 0.0,
    limits: Broker | None = None,
) -> None:
    """
    Run ``actor`` to its end, or until ``stopping`` is set and ``drain`` has finished; then send Bye.

    Args:
        drain_s: Time limit given to ``drain``, which the service manager is asked to wait.
        limits: Time limits of a role whose work must make progress; None for a role that only answers.

    Raises:
        NodeStalled: There was no progress for ``limits.stall_limit_s``. A process of `run_process` ends soon after,
            whatever its threads do.
    """
    cores, own_cores = Cores(), OwnCores() if limits else None
    clock = asyncio.get_running_loop().time
    standstill = limits and Standstill(limits, clock())
    stalled: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def beat(lag_s: float) -> Beat:
        used = own_cores.used() if own_cores else 0.0
        made = replace(
            actor.heartbeat(lag_s),
            memory_stall=memory_stall(),
            cores_busy=cores.busy(),
            cores=used,
            machine=machine_use(),
        )
        if standstill:
            standstill.heard(made, clock())
            if standstill.is_over_limit(clock()) and not stalled.done():
                stalled.set_result(standstill.sentence(clock()))
        return made

    beats = asyncio.create_task(send_beats(link, beat_s, beat), name="beats")
    running = asyncio.create_task(actor.run(), name="actor")
    draining = asyncio.create_task(_drain_on_stop(stopping, drain, drain_s), name="stopping")
    service_manager().ready(actor.status, stop_s=drain_s)
    log.info("node.ready", status=actor.status())
    try:
        with read_from(actor.metrics):
            ends: tuple[asyncio.Future[Any], ...] = (running, draining, stalled)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        if stalled.done():
            raise NodeStalled(f"no progress: {stalled.result()}; this node ends, to be started again")
    except NodeStalled as error:
        await _end_stalled(error, link)
        raise
    finally:
        for task in (beats, running, draining):
            task.cancel()
        if not stalled.done():
            await asyncio.gather(beats, running, draining, return_exceptions=True)
            reason = _bye_reason(running, stopping)
            log.info("node.left", reason=reason, status=actor.status())
            await leave(link, reason)
        stalled.cancel()


async def _end_stalled(error: NodeStalled, link: Link) -> None:
    """Leave the run at once, and end this process even if its threads never return; a host's process stays."""
    log.error("node.stalled", cause=str(error))
    if service_manager().owns_process:
        exit_unless_cancelled(error)
    await leave(link, f"{type(error).__name__}: {error}")


class NodeSession:
    """
    A membership of a node in the run, from the broker's `Welcome` until the run is over or the broker is lost.

    As a context manager it ends with its node's part in the run. If the broker restarted, or fell silent, that is
    logged, and `RunNode.sessions` joins again; see `RunNode` for ``rejoin_on``.

    Attributes:
        link: Link to the broker.
        welcome: What the broker told this node when it joined.
        models_folder: Folder for answers of models that the node keeps; None if the run directory is elsewhere.
        copies: Directories of this machine in place of those of the run, by `asyncrl.runtime.model_files.local_copies`.
        is_over: True once the block ended without an error: no session follows.
    """

    def __init__(self, node: "RunNode", who: Identity, link: Link, welcome: Welcome) -> None:
        self.run, self.who, self.link, self.welcome = node.run, who, link, welcome
        self.copies: Mapping[str, str] = {}
        self.stopping = node.stopping
        self.models_folder = node.run_dir and RunDirectory(node.run_dir).models / who.node
        self.is_over = False
        self._rejoin_on = node.rejoin_on

    @property
    def config(self) -> Config:
        """The run's configuration, as the broker has it, but for the ``copies`` of this machine."""
        return with_copies(from_json(self.welcome.config), self.copies)

    async def __aenter__(self) -> "NodeSession":
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        match error:
            case None:
                self.is_over = True
            case UnknownKey():
                raise UnknownKey(unknown_key(self.run)) from None
            case LinkRefused() | LinkClosed():
                return False
            case MachineLost():
                log.warning("machine.lost", node=self.who.node, cause=str(error))
                return True
            case LinkError() if isinstance(error, (LinkSilent, self._rejoin_on)):
                log.warning("broker.lost", node=self.who.node, cause=str(error))
                return True
        return False

    def over(self, link: Link) -> "NodeSession":
        """The same session over another link, which wraps its own."""
        other = copy(self)
        other.link = link
        return other

    def connection(self) -> Connection:
        """The link to the broker, and links to the spools of the run."""
        return Connection(self.who, self.link, spool_links(self.welcome.spools, self.who, self.run))

    async def wait_for(self, waiting: Awaitable[Loaded]) -> Loaded:
        """`await_with_beats`, until the node is told to stop, which raises `ToldToStop`."""
        return await unless_told(self.stopping, await_with_beats(self.link, self.welcome.beat_s, waiting))

    async def load(self, load: Callable[[], Loaded]) -> Loaded:
        """`load_with_beats`."""
        return await load_with_beats(self.link, self.welcome.beat_s, load)

    async def take_turn(self) -> None:
        """Wait for this node's first turn at devices that trainer and rollouts share."""
        self.link = await self.wait_for(wait_for_turn(self.link))

    def serve(
        self,
        actor: Actor,
        *,
        drain: Callable[[float], Awaitable[object]] | None = None,
        drain_s: float = 0.0,
        limits: Broker | None = None,
    ) -> Coroutine[Any, Any, None]:
        """`serve` over the session's link, until the node is told to stop."""
        beat_s, stopping = self.welcome.beat_s, self.stopping
        return serve(actor, self.link, beat_s=beat_s, stopping=stopping, drain=drain, drain_s=drain_s, limits=limits)


Find = Callable[[], Awaitable[RunAddress]]
"""Finds the broker of the run; waits for it, if need be."""


class RunNode:
    """
    A role of a run in this process.

    Args:
        run: Address of the run, or what finds it.
        wait_s: Time for the broker to answer, at the start and whenever it was lost; None waits until it does.
        run_dir: Run directory of this machine, with which the node ends too; None if it is on another machine.
        make_hello: Makes the Hello of each session. It may be replaced between two.
        rejoin_on: Errors of a session after which the broker is joined again: `LinkReset`, its restart, or `LinkError`,
            its silence too. A node that was refused never joins again; one whose `MachineLost` ends a session does.
        run_id: The run that this node was a member of before, and joins alone; empty for a new node.

    Attributes:
        run_id: The run that it joined last.
    """

    run: RunAddress

    def __init__(
        self,
        who: Identity,
        run: RunAddress | Find,
        *,
        wait_s: float | None,
        stopping: asyncio.Event | None = None,
        run_dir: Path | None = None,
        make_hello: Callable[[Identity], Hello] = hello,
        rejoin_on: type[LinkError] = LinkReset,
        run_id: str = "",
    ) -> None:
        self.who = who
        self.stopping = stopping or asyncio.Event()
        self.make_hello = make_hello
        self.rejoin_on = rejoin_on
        self._find = run
        if isinstance(run, RunAddress):
            self.run = run
        self._wait_s = wait_s
        self.run_dir = run_dir
        self.run_id = run_id
        self._is_member = bool(run_id)

    @asynccontextmanager
    async def part_of_run(self, stopping: StopEvent) -> AsyncIterator[None]:
        """
        Find the broker, and take part in the run until it is over, ``stopping`` is set, or the block ends.

        Raises:
            ToldToLeave: A signal ended it, and not the broker.
        """
        self.stopping = stopping
        with suppress(ToldToStop):
            async with until_run_is_over(self.run_dir):
                if not isinstance(self._find, RunAddress):
                    self.run = await unless_told(stopping, self._find())
                yield
        if stopping.by_signal:
            told = PARENT_DIED if stopping.is_orphaned else TOLD
            raise ToldToLeave(told.format("its run goes on" if self._is_member else "it had joined no run"))

    async def sessions(self) -> AsyncIterator[NodeSession]:
        """
        Join the run for one session after another, until one ends without an error.

        Raises:
            LinkError: The broker does not answer in time.
            LinkRefused: It rejects this node, or serves another run than before.
            ToldToStop: The node was told to stop before the broker answered.
        """
        who = self.who
        while True:
            joining = join_steadily(self.run, who, self._wait_s, self._hello, is_member=self._is_member)
            who, link, welcome = await unless_told(self.stopping, joining)
            self.run_id, self._is_member = welcome.run_id, True
            about(run=Path(welcome.run_dir).name)
            yield (session := NodeSession(self, who, link, welcome))
            if session.is_over:
                return
            who = identity(who.role, who.node)

    def _hello(self, who: Identity) -> Hello:
        made = self.make_hello(who)
        return replace(made, run_id=self.run_id) if self._is_member else made


TOLD = "a signal told this process to leave, and {}; to take a node away for good, use asyncrl drain"
PARENT_DIED = "the process that started this one has died, and {}: start it again"
"""Sentences of `ToldToLeave`, with what becomes of the run."""


async def join_steadily(
    run: RunAddress,
    who: Identity,
    wait_s: float | None,
    make_hello: Callable[[Identity], Hello] = hello,
    *,
    is_member: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[Identity, ZmqLink, Welcome]:
    """
    Join, and again as another start of the node, after growing pauses, if the broker is lost in the handshake.

    Raises as `join`; without a limit ``wait_s`` only `LinkRefused`. A member of the run waits while another process
    holds the broker's port, and while the secret cannot be read: a broker that ends removes it for nodes of its user.
    One that was killed does not, so a new node waits for the secret of the next broker at that address.
    """
    tolerated = (LinkError,) if wait_s is None else (LinkReset, LinkSilent)
    pauses_s = chain(REJOIN_PAUSES_S, repeat(REJOIN_PAUSES_S[-1]))
    clock = asyncio.get_running_loop().time
    deadline_s = None if wait_s is None else clock() + wait_s
    service_manager().waiting(f"waiting for the broker at {run.broker}")
    while True:
        used = _credentials_bytes(run)
        try:
            left_s = None if deadline_s is None else max(round(deadline_s - clock(), 1), POLL_S)
            link, welcome = await join(run, who, left_s, make_hello)
        except WrongHub as error:
            if not is_member and not await _are_renewed(run, used, sleep):
                raise
            log.warning("broker.another_run", node=who.node, cause=str(error))
        except ConfigError as error:
            if not is_member or (deadline_s is not None and clock() >= deadline_s):
                raise
            log.warning("broker.lost", node=who.node, cause=str(error))
        except LinkRefused:
            raise
        except tolerated as lost:
            log.warning("broker.lost", node=who.node, cause=str(lost))
        else:
            run_name = Path(welcome.run_dir).name
            belongs_to(run_name)
            log.info("node.joined", run=run_name, path=welcome.run_dir, incarnation=who.incarnation, broker=run.broker)
            service_manager().starting("joined the run")
            return who, link, welcome
        await sleep(next(pauses_s))
        who = identity(who.role, who.node)


async def _are_renewed(run: RunAddress, used: bytes, sleep: Callable[[float], Awaitable[None]]) -> bool:
    """True as soon as the credentials file has others than the ``used`` ones; False if it keeps them."""
    for _ in range(round(RENEWAL_S / POLL_S)):
        if _credentials_bytes(run) not in (b"", used):
            return True
        await sleep(POLL_S)
    return False


def _credentials_bytes(run: RunAddress) -> bytes:
    """Contents of the credentials file; empty if they cannot be read, of which `join` tells."""
    try:
        return run.credentials_file.read_bytes() if run.credentials_file else b""
    except OSError:
        return b""


async def await_with_beats(link: Link, beat_s: float, waiting: Awaitable[Loaded]) -> Loaded:
    """Await ``waiting`` while sending heartbeats; the node leaves the run if it raises an `AsyncrlError`."""
    beats = asyncio.create_task(send_beats(link, beat_s, Beat))
    try:
        return await waiting
    except AsyncrlError as error:
        beats.cancel()
        await leave(link, str(named_here(error)))
        raise named_here(error) from error
    finally:
        beats.cancel()


async def load_with_beats(link: Link, beat_s: float, load: Callable[[], Loaded]) -> Loaded:
    """
    Run ``load`` in a thread while sending heartbeats: loading takes seconds, and a silent node counts as lost.

    The loaded objects are excluded from garbage collection: one traversal of a model's half a million objects stops the
    process for .2 to .5 s, in the middle of a step. So are those of imports.

    Raises:
        AsyncrlError: Raised by ``load``; the node has left the run.
    """
    service_manager().starting("loading the model")
    gc.freeze()
    loaded = await await_with_beats(link, beat_s, _in_thread(load))
    gc.collect()
    gc.freeze()
    return loaded


def collect_earlier_models() -> None:
    """Free models of earlier sessions: a sharded one contains reference cycles, and keeps its device's memory."""
    gc.unfreeze()
    gc.collect()


async def _in_thread(load: Callable[[], Loaded]) -> Loaded:
    loading = asyncio.create_task(asyncio.to_thread(load))
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        await asyncio.wait([loading])  # Its thread cannot be stopped, and uses what the caller closes next.
        raise


def named_here(error: AsyncrlError) -> AsyncrlError:
    """The error, with this machine's name added to a mistake in the configuration: a path may be another here."""
    return ConfigError(f"on {socket.gethostname()}: {error}") if isinstance(error, ConfigError) else error


def _bye_reason(running: "asyncio.Task[None]", stopping: asyncio.Event) -> str:
    """Reason for the Bye: the error of the actor, if it failed."""
    if not running.cancelled() and (error := running.exception()):
        return f"{type(error).__name__}: {error}"
    return why_told(stopping) if stopping.is_set() else "done"


async def _drain_on_stop(
    stopping: asyncio.Event, drain: Callable[[float], Awaitable[object]] | None, drain_s: float
) -> None:
    await stopping.wait()
    if drain is not None:
        await drain(drain_s)


# ── run end ───────────────────────────────────────────────────────────────────────────────────
# The end of a run, seen from its directory: a node that is started after the broker has left hears of it from nobody.
#
# A service manager may restart a node at the very end of a run, or start every service of a run that is complete.

LOOK_S = 2.0
QUIET_LOOKS = 5
"""Looks in a row that find the run complete and no broker. One that extends the run needs seconds to start."""


def is_over(directory: RunDirectory) -> bool:
    """True if the run is complete, and no broker serves it."""
    return directory.finished_summary() is not None and not is_locked(directory.lock)


async def until_over(
    directory: RunDirectory,
    *,
    is_over: Callable[[RunDirectory], bool] = is_over,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Return once the run has been complete, without a broker, for `QUIET_LOOKS` looks."""
    looks = 0
    while looks < QUIET_LOOKS:
        await sleep(LOOK_S)
        looks = looks + 1 if is_over(directory) else 0


@asynccontextmanager
async def until_run_is_over(run_dir: Path | None) -> AsyncIterator[None]:
    """End the block, without an error, when the run in ``run_dir`` is over; None if that is on another machine."""
    if run_dir is None:
        yield
        return
    task, is_ended = asyncio.current_task(), False
    assert task is not None

    def end(_: "asyncio.Task[None]") -> None:
        nonlocal is_ended
        if not watching.cancelled():
            is_ended = True
            task.cancel()

    watching = asyncio.create_task(until_over(RunDirectory(run_dir)), name="end of the run")
    watching.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        if not is_ended or task.uncancel():  # Somebody else cancelled it too.
            raise
        watching.result()
        log.info("run.over", path=str(run_dir))
    finally:
        watching.cancel()


# ── turn ──────────────────────────────────────────────────────────────────────────────────────
# The first turn of a node at devices that trainer and rollouts share: nothing is loaded before it.
#
#     Welcome ─▶ Asleep, AskTurn ─▶ … ─▶ Wake ─▶ load ─▶ Ready
#                                    └ messages that come meanwhile are for the actor


class ReadAhead:
    """A `Link` of which some messages were read already: they are received first."""

    def __init__(self, link: Link, messages: Iterable[Message]) -> None:
        self._link = link
        self._messages = deque(messages)

    async def send(self, message: Message, /) -> None:
        await self._link.send(message)

    async def receive(self) -> Message:
        return self._messages.popleft() if self._messages else await self._link.receive()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over `receive` until the link is closed."""
        with suppress(LinkClosed):
            while True:
                yield await self.receive()

    async def aclose(self) -> None:
        await self._link.aclose()


async def wait_for_turn(link: Link) -> Link:
    """
    Wait for this node's turn, of which nothing may be on the devices. Returns the link for all that follows.

    Raises:
        ToldToStop: The run is over.
        LinkRefused: The broker rejected this node.
    """
    await link.send(Asleep())
    await link.send(AskTurn())
    early: list[Message] = []
    while True:
        match await link.receive():
            case Wake():
                return ReadAhead(link, early)
            case Sleep():
                pass  # It crossed with the `Asleep` above.
            case Stop():
                await leave(link, "done")
                raise ToldToStop
            case Reject(reason=reason):
                raise LinkRefused(reason)
            case message:
                early.append(message)
