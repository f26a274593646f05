"""A link whose other end is the test."""

import asyncio
from collections.abc import AsyncIterator

from asyncrl.errors import LinkClosed, LinkError
from asyncrl.messages import Message


class ScriptedLink:
    """The test hears what is sent, and says what is received."""

    def __init__(self) -> None:
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._to_come: asyncio.Queue[Message | LinkError] = asyncio.Queue()

    def say(self, *messages: Message | LinkError) -> None:
        """The peer says these, or the link breaks."""
        for message in messages:
            self._to_come.put_nowait(message)

    async def hear(self) -> Message:
        """What the peer hears next."""
        return await self._sent.get()

    @property
    def unheard(self) -> int:
        """Messages sent that the test has not heard."""
        return self._sent.qsize()

    async def send(self, message: Message, /) -> None:
        self._sent.put_nowait(message)

    async def receive(self) -> Message:
        message = await self._to_come.get()
        if isinstance(message, LinkError):
            raise message
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                yield await self.receive()
            except LinkClosed:
                return

    async def aclose(self) -> None:
        self.say(LinkClosed("closed"))
