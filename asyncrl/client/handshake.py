"""The first words of a session: find the broker, say Hello, be welcomed, and keep saying that one is alive."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.actor.zmq_link import DATA_FRAME_BYTES, ZmqLink
from asyncrl.errors import LinkError, LinkRefused
from asyncrl.messages import PROTOCOL, Beat, Bye, Hello, Reject, Role, Welcome


class Identity(Struct, frozen=True):
    """Who a process is."""

    role: Role
    node: str
    incarnation: str

    @property
    def peer(self) -> str:
        """What hubs call it."""
        return f"{self.node}.{self.incarnation}"


def identity(role: Role, node: str) -> Identity:
    """A new incarnation of ``node``: two starts never share one, even within a clock tick."""
    return Identity(role, node, f"{time.time_ns():x}-{os.getpid()}")


def hello(who: Identity) -> Hello:
    """The first message of somebody with nothing in hand."""
    return Hello(PROTOCOL, who.role, who.node, who.incarnation)


async def join(
    address: str, who: Identity, deadline_s: float, say: Callable[[Identity], Hello] = hello
) -> tuple[ZmqLink, Welcome]:
    """
    Connect to the broker and be welcomed.

    Args:
        say: Makes the first message.

    Raises:
        LinkError: Nobody answered within ``deadline_s``, or the address is not one.
        LinkRefused: The broker said no; its reason is the message.
    """
    async with contextlib.AsyncExitStack() as unless_welcome:
        link = ZmqLink(address, who.peer)
        unless_welcome.push_async_callback(link.aclose)
        try:
            async with asyncio.timeout(deadline_s):
                welcome = await greet(link, who, say)
        except TimeoutError:
            raise LinkError(
                f"no broker answered at {address} within {deadline_s:g} s: is it running, and is the address right?"
            ) from None
        unless_welcome.pop_all()
    return link, welcome


async def greet(link: Link, who: Identity, say: Callable[[Identity], Hello] = hello) -> Welcome:
    """
    Say Hello on a fresh link.

    Raises:
        LinkRefused: The broker said no; its reason is the message.
    """
    await link.send(say(who))
    while True:
        match await link.receive():
            case Welcome() as welcome:
                return welcome
            case Reject(reason=reason):
                raise LinkRefused(reason)


def spool_link(welcome: Welcome, who: Identity) -> ZmqLink:
    """The bulk socket of this node: apart from control, which would otherwise wait behind it."""
    return ZmqLink(welcome.spool, who.peer, max_frame_bytes=DATA_FRAME_BYTES, is_there=True)


async def beat(link: Link, interval_s: float, sign: Callable[[float], Beat]) -> None:
    """
    Say "I am alive" for as long as the link lives, from this very loop: a wedged loop must look dead.

    Args:
        sign: Makes the beat, given how late the loop was in seconds.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        await link.send(sign(max(loop.time() - due_s, 0.0)))


async def leave(link: Link, reason: str) -> None:
    """Say Bye and close; if the broker is gone already, just close."""
    try:
        async with asyncio.timeout(1.0):
            await link.send(Bye(reason))
    except (LinkError, TimeoutError):
        pass
    finally:
        await link.aclose()
