"""A node's handshake with the broker, and its heartbeats."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.actor.zmq_link import DATA_FRAME_BYTES, ZmqLink
from asyncrl.errors import LinkError, LinkRefused
from asyncrl.messages import CODEC, PROTOCOL, Beat, Bye, Hello, Reject, Role, Welcome


class Identity(Struct, frozen=True):
    """Role and name of a node, with a string that is unique for this start of it."""

    role: Role
    node: str
    incarnation: str

    @property
    def peer(self) -> str:
        """Name of this node at a hub."""
        return f"{self.node}.{self.incarnation}"


def identity(role: Role, node: str) -> Identity:
    """Identity for a new start of ``node``; no two starts share one, even within a clock tick."""
    return Identity(role, node, f"{time.time_ns():x}-{os.getpid()}")


def hello(who: Identity) -> Hello:
    """`Hello` of a node that continues nothing from an earlier session."""
    return Hello(PROTOCOL, who.role, who.node, who.incarnation)


async def join(
    address: str, who: Identity, deadline_s: float, make_hello: Callable[[Identity], Hello] = hello
) -> tuple[ZmqLink, Welcome]:
    """
    Connect to the broker and shake hands.

    Raises:
        LinkError: There is no answer within ``deadline_s``, or the address is malformed.
        LinkRefused: The broker rejected the node; the message is its reason.
    """
    async with contextlib.AsyncExitStack() as unless_welcome:
        link = ZmqLink(address, who.peer, CODEC)
        unless_welcome.push_async_callback(link.aclose)
        try:
            async with asyncio.timeout(deadline_s):
                welcome = await shake_hands(link, who, make_hello)
        except TimeoutError:
            raise LinkError(
                f"no broker answered at {address} within {deadline_s:g} s: is it running, and is the address right?"
            ) from None
        unless_welcome.pop_all()
    return link, welcome


async def shake_hands(link: Link, who: Identity, make_hello: Callable[[Identity], Hello] = hello) -> Welcome:
    """
    Send `Hello` on a new link and wait for `Welcome`.

    Raises:
        LinkRefused: The broker rejected the node; the message is its reason.
    """
    await link.send(make_hello(who))
    while True:
        match await link.receive():
            case Welcome() as welcome:
                return welcome
            case Reject(reason=reason):
                raise LinkRefused(reason)


def spool_link(welcome: Welcome, who: Identity) -> ZmqLink:
    """Link to the node's spool: a socket of its own, so that control messages do not wait behind payloads."""
    return ZmqLink(welcome.spool, who.peer, CODEC, max_frame_bytes=DATA_FRAME_BYTES, is_there=True)


async def send_beats(
    link: Link,
    interval_s: float,
    make_beat: Callable[[float], Beat],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """
    Send a heartbeat every ``interval_s`` seconds from the node's own event loop, so that a blocked loop looks dead.

    Args:
        make_beat: Given the delay of the loop in seconds.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await sleep(interval_s)
        await link.send(make_beat(max(loop.time() - due_s, 0.0)))


async def leave(link: Link, reason: str) -> None:
    """Send `Bye` and close the link; a broker that is gone is no error."""
    try:
        async with asyncio.timeout(1.0):
            await link.send(Bye(reason))
    except (LinkError, TimeoutError):
        pass
    finally:
        await link.aclose()
