"""Runs an actor with heartbeats, across restarts of the broker."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import structlog

from asyncrl.actor.link import Link
from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.handshake import Identity, hello, identity, join, leave, send_beats
from asyncrl.errors import AsyncrlError, LinkReset
from asyncrl.messages import Beat, Hello, Welcome

log = structlog.get_logger()

Loaded = TypeVar("Loaded")


class Actor(Protocol):
    """Interface of every role's actor."""

    async def run(self) -> None:
        """Serve until the broker sends Stop."""

    def beat(self, lag_s: float, /) -> Beat:
        """The next heartbeat, given the delay of the event loop in seconds."""


async def serve(
    actor: Actor,
    link: Link,
    *,
    beat_s: float,
    stopping: asyncio.Event,
    drain: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Run ``actor`` to its end, or until ``stopping`` is set and ``drain`` has finished; then send Bye."""
    beats = asyncio.create_task(send_beats(link, beat_s, actor.beat), name="beats")
    running = asyncio.create_task(actor.run(), name="actor")
    draining = asyncio.create_task(_drain_on_stop(stopping, drain), name="stopping")
    try:
        await asyncio.wait([running, draining], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (beats, running, draining):
            task.cancel()
        await asyncio.gather(beats, running, draining, return_exceptions=True)
        await leave(link, _bye_reason(running, stopping))


async def run_sessions(
    session: Callable[[Identity, ZmqLink, Welcome], Awaitable[None]],
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    wait_s: float,
    *,
    make_hello: Callable[[Identity], Hello] = hello,
) -> None:
    """
    Run ``session`` to its end. If the broker restarts, join it again and run ``session`` on the new link.

    Args:
        session: Called with an identity, its link and its welcome; the first time with ``who, link, welcome``.
        wait_s: Time for a restarted broker to answer.
        make_hello: Makes the Hello of later sessions.

    Raises:
        AsyncrlError: Raised by the session, or `LinkError` if the broker does not answer within ``wait_s``.
    """
    while True:
        try:
            await session(who, link, welcome)
            return
        except LinkReset as reset:
            log.info("broker.restarted", cause=str(reset))
        who = identity(who.role, who.node)
        link, welcome = await join(link.address, who, wait_s, make_hello)


async def load_with_beats(link: Link, beat_s: float, load: Callable[[], Loaded]) -> Loaded:
    """
    Run ``load`` in a thread while sending heartbeats: loading takes seconds, and a silent node counts as lost.

    The loaded objects are excluded from garbage collection: one traversal of a model's half a million objects stops the
    process for .2 to .5 s, in the middle of a step. Objects of an earlier session are collected first: a sharded model
    contains reference cycles, and would otherwise keep its device memory while the next one is loaded.

    Raises:
        AsyncrlError: Raised by ``load``; the node has left the run.
    """
    gc.unfreeze()
    gc.collect()
    beats = asyncio.create_task(send_beats(link, beat_s, Beat))
    try:
        loaded = await asyncio.to_thread(load)
    except AsyncrlError as error:
        beats.cancel()
        await leave(link, str(error))
        raise
    finally:
        beats.cancel()
    gc.collect()
    gc.freeze()
    return loaded


def _bye_reason(running: "asyncio.Task[None]", stopping: asyncio.Event) -> str:
    """Reason for the Bye: the error of the actor, if it failed."""
    if not running.cancelled() and (error := running.exception()):
        return f"{type(error).__name__}: {error}"
    return "told to stop" if stopping.is_set() else "done"


async def _drain_on_stop(stopping: asyncio.Event, drain: Callable[[], Awaitable[object]] | None) -> None:
    await stopping.wait()
    if drain is not None:
        await drain()
