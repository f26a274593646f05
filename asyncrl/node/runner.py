"""Runs an actor with heartbeats, across restarts of the broker."""

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from asyncrl.actor.link import Link
from asyncrl.actor.sockets.zmq_link import ZmqLink
from asyncrl.actor.waiting import OtherCameFirst, unless
from asyncrl.client.handshake import Identity, hello, identity, join, leave, send_beats, unknown_key
from asyncrl.client.run_address import POLL_S, RunAddress
from asyncrl.client.standstill import Standstill
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
    UnknownKey,
    WrongHub,
)
from asyncrl.log import about, get_logger
from asyncrl.messages.session import Beat, Hello, Welcome
from asyncrl.node.machine.cores import Cores, OwnCores
from asyncrl.node.machine.pressure import memory_stall
from asyncrl.node.process.process import exit_unless_cancelled
from asyncrl.node.process.service_manager import service_manager
from asyncrl.observe.metrics.sources import read_from
from asyncrl.observe.metrics.table import Sample
from asyncrl.observe.metrics.targets import belongs_to

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

    def beat(self, lag_s: float, /) -> Beat:
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
        made = replace(actor.beat(lag_s), memory_stall=memory_stall(), cores_busy=cores.busy(), cores=used)
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


async def run_sessions(
    session: Callable[[Identity, Link, Welcome], Awaitable[None]],
    who: Identity,
    link: Link,
    welcome: Welcome,
    *,
    run: RunAddress,
    wait_s: float | None,
    stopping: asyncio.Event,
    make_hello: Callable[[Identity], Hello] = hello,
    rejoin_on: type[LinkError] = LinkReset,
) -> None:
    """
    Run ``session`` to its end. If the broker restarts or falls silent, join it again for a session on a new link.

    Args:
        session: Called with an identity, its link and its welcome; the first time with ``who, link, welcome``.
        wait_s: Time for a restarted broker to answer; None waits until it does.
        stopping: Set to end the wait for it.
        make_hello: Makes the Hello of later sessions.
        rejoin_on: Errors of a session after which the broker is joined again: `LinkReset`, its restart, or `LinkError`,
            its silence too. A node that was refused never joins again; one whose `MachineLost` ends a session does.

    Raises:
        AsyncrlError: Raised by the session, or `LinkError` if the broker does not answer within ``wait_s``.
        LinkRefused: The broker that answers serves another run.
        ToldToStop: ``stopping`` was set before the broker was back.
    """
    run_id = welcome.run_id
    about(run=Path(welcome.run_dir).name)

    def hello_again(who: Identity) -> Hello:
        return replace(make_hello(who), run_id=run_id)

    while True:
        try:
            await session(who, link, welcome)
            return
        except UnknownKey:
            raise UnknownKey(unknown_key(run)) from None
        except (LinkRefused, LinkClosed):
            raise
        except MachineLost as lost:
            log.warning("machine.lost", node=who.node, cause=str(lost))
        except (LinkSilent, rejoin_on) as lost:
            log.warning("broker.lost", node=who.node, cause=str(lost))
            service_manager().waiting(f"waiting for the broker at {run.broker}")
        again = identity(who.role, who.node)
        joining = join_steadily(run, again, wait_s, hello_again, is_member=True)
        who, link, welcome = await unless_told(stopping, joining)


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
    tolerated: type[LinkError] = LinkError if wait_s is None else LinkReset
    pauses_s = chain(REJOIN_PAUSES_S, repeat(REJOIN_PAUSES_S[-1]))
    clock = asyncio.get_running_loop().time
    deadline_s = None if wait_s is None else clock() + wait_s
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
            log.info("node.joined", run=run_name, incarnation=who.incarnation, broker=run.broker)
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
    process for .2 to .5 s, in the middle of a step. Objects of an earlier session are collected first.

    Raises:
        AsyncrlError: Raised by ``load``; the node has left the run.
    """
    collect_earlier_models()
    service_manager().waiting("loading the model")
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
    """The same error; a mistake in the configuration also names this machine, where a path may be another."""
    return ConfigError(f"on {socket.gethostname()}: {error}") if isinstance(error, ConfigError) else error


def _bye_reason(running: "asyncio.Task[None]", stopping: asyncio.Event) -> str:
    """Reason for the Bye: the error of the actor, if it failed."""
    if not running.cancelled() and (error := running.exception()):
        return f"{type(error).__name__}: {error}"
    return "told to stop" if stopping.is_set() else "done"


async def _drain_on_stop(
    stopping: asyncio.Event, drain: Callable[[float], Awaitable[object]] | None, drain_s: float
) -> None:
    await stopping.wait()
    if drain is not None:
        await drain(drain_s)
