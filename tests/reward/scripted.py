"""A link with the test as its peer."""

import asyncio
from collections.abc import AsyncIterator

from asyncrl.errors import LinkClosed, LinkError
from asyncrl.messages.codec import Message


class ScriptedLink:
    """Link whose sent messages the test reads, and whose received messages the test writes."""

    def __init__(self) -> None:
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._to_come: asyncio.Queue[Message | LinkError] = asyncio.Queue()

    def say(self, *messages: Message | LinkError) -> None:
        """Let the link receive these messages, or break with an error."""
        for message in messages:
            self._to_come.put_nowait(message)

    async def hear(self) -> Message:
        """Next message that was sent."""
        return await self._sent.get()

    @property
    def unheard(self) -> int:
        """Number of messages sent that the test has not read."""
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
