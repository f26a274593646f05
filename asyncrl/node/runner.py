"""How a process runs an actor: beats beside it, until the run is over or the process is told to stop."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import structlog

from asyncrl.actor.link import Link
from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.handshake import Identity, beat, hello, identity, join, leave
from asyncrl.errors import LinkReset
from asyncrl.messages import Beat, Hello, Welcome

log = structlog.get_logger()

Loaded = TypeVar("Loaded")


class Actor(Protocol):
    """What every role's actor offers its process."""

    async def run(self) -> None:
        """Serve until told to stop."""

    def beat(self, lag_s: float, /) -> Beat:
        """A sign of life."""


async def serve(
    actor: Actor,
    link: Link,
    *,
    beat_s: float,
    stopping: asyncio.Event,
    drain: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """
    Run ``actor`` to its end. When ``stopping`` is set, ``drain`` first, then leave.

    Raises:
        AsyncrlError: Whatever ended the actor.
    """
    beats = asyncio.create_task(beat(link, beat_s, actor.beat), name="beats")
    running = asyncio.create_task(actor.run(), name="actor")
    told = asyncio.create_task(_told(stopping, drain), name="stopping")
    try:
        await asyncio.wait([running, told], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (beats, running, told):
            task.cancel()
        await asyncio.gather(beats, running, told, return_exceptions=True)
        await leave(link, _parting(running, stopping))


async def through_restarts(
    session: Callable[[Identity, ZmqLink, Welcome], Awaitable[None]],
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    wait_s: float,
    *,
    say: Callable[[Identity], Hello] = hello,
) -> None:
    """
    Run ``session`` to its end; if the broker starts again, say Hello to the new one and run it anew.

    Args:
        session: One life of the link.
        who: With ``link`` and ``welcome``, the first of them.
        wait_s: For a broker to answer.
        say: Makes the Hello of the next session.

    Raises:
        AsyncrlError: Whatever ended the session; `LinkError` if the broker does not answer within ``wait_s``.
    """
    while True:
        try:
            await session(who, link, welcome)
            return
        except LinkReset as reset:
            log.info("broker.restarted", cause=str(reset))
        who = identity(who.role, who.node)
        link, welcome = await join(link.address, who, wait_s, say)


async def loading(link: Link, beat_s: float, load: Callable[[], Loaded]) -> Loaded:
    """
    Run ``load`` in a thread while beats go on: it takes seconds, and a silent node is lost.

    The garbage collector never looks at what was loaded again: over a model's half a million objects, one look stops a
    process for .2 to .5 s, in the middle of a step. What an earlier session loaded is let go first: a sharded model
    refers to itself, and would stay, device memory and all, beside the one that takes its place.

    Raises:
        AsyncrlError: What ``load`` raised.
    """
    gc.unfreeze()
    gc.collect()
    beats = asyncio.create_task(beat(link, beat_s, Beat))
    try:
        loaded = await asyncio.to_thread(load)
    finally:
        beats.cancel()
    gc.collect()
    gc.freeze()
    return loaded


def _parting(running: "asyncio.Task[None]", stopping: asyncio.Event) -> str:
    """What the broker hears last: a node that ends by an error says which."""
    if not running.cancelled() and (error := running.exception()):
        return f"{type(error).__name__}: {error}"
    return "told to stop" if stopping.is_set() else "done"


async def _told(stopping: asyncio.Event, drain: Callable[[], Awaitable[object]] | None) -> None:
    await stopping.wait()
    if drain is not None:
        await drain()
