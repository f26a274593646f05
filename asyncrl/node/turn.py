"""
The first turn of a node at devices that trainer and rollouts share: nothing is loaded before it.

    Welcome ─▶ Asleep, AskTurn ─▶ … ─▶ Wake ─▶ load ─▶ Ready
                                   └ messages that come meanwhile are for the actor
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from asyncrl.actor.link import Link
from asyncrl.actor.message import Message
from asyncrl.client.handshake import leave
from asyncrl.errors import LinkClosed, LinkRefused
from asyncrl.messages.session import AskTurn, Asleep, Reject, Sleep, Stop, Wake
from asyncrl.node.runner import ToldToStop, await_with_beats, unless_told


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


async def first_turn(link: Link, beat_s: float, stopping: asyncio.Event) -> Link:
    """`wait_for_turn` with heartbeats, until ``stopping`` is set, which raises `ToldToStop`."""
    return await unless_told(stopping, await_with_beats(link, beat_s, wait_for_turn(link)))


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
