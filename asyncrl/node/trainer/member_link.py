"""
Link of a machine of a trainer of several to the broker, for one group of machines.

    link ─▶ Disbanded ─▶ lost             at any time, also while the model is loaded
         └▶ all others ─▶ receive
    Bye ─▶ held back until the cause is known that ended the group: the ranks notice a loss before anybody can name it
    Beat ─▶ repeated while the role sends none, as before its start and after its end
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from asyncrl.actor.inbox import Inbox
from asyncrl.actor.link import Link
from asyncrl.actor.message import Message
from asyncrl.client.handshake import leave
from asyncrl.errors import LinkClosed, LinkError, LinkRefused, MachineLost
from asyncrl.messages.session import Beat, Bye, Reject
from asyncrl.messages.trainer import Disbanded

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
