"""
Payloads out of a spool, by reference: what is asked for while a request is being sent travels in the next one.

    fetch(ref) ─┐
    fetch(ref) ─┼─▶ Fetch [ref, ref, ref] ─▶ spool ─▶ Fetched [bytes, bytes, bytes] ─▶ one each
    fetch(ref) ─┘
"""

import asyncio
from collections import deque
from itertools import count

from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.errors import LinkClosed, LinkError
from asyncrl.messages import Fetch, Fetched, SpoolRef

MAX_REFS = 64
"""In one `Fetch`: at 20 kB a payload its answer is about a megabyte."""


class Wanted(Struct, frozen=True, eq=False):
    """A payload somebody waits for."""

    ref: SpoolRef
    payload: "asyncio.Future[memoryview]"


class Payloads:
    """One end of a link to a spool, for many who fetch at once. `ask` and `hear` must run beside them."""

    def __init__(self, spool: Link) -> None:
        self._spool = spool
        self._wanted: deque[Wanted] = deque()
        self._is_wanted = asyncio.Event()
        self._asked: dict[int, list[Wanted]] = {}
        self._request_ids = count(1)

    async def fetch(self, ref: SpoolRef) -> memoryview:
        """The payload; empty if the spool no longer has it."""
        wanted = Wanted(ref, asyncio.get_running_loop().create_future())
        self._wanted.append(wanted)
        self._is_wanted.set()
        return await wanted.payload

    async def ask(self) -> None:
        """
        Send requests until cancelled.

        Raises:
            LinkError: The spool is gone.
        """
        while True:
            await self._is_wanted.wait()
            batch = [self._wanted.popleft() for _ in range(min(MAX_REFS, len(self._wanted)))]
            if not self._wanted:
                self._is_wanted.clear()
            request_id = next(self._request_ids)
            self._asked[request_id] = batch
            await self._send(Fetch(request_id, [wanted.ref for wanted in batch]))

    async def hear(self) -> None:
        """
        Hand out answers until cancelled.

        Raises:
            LinkError: The spool is gone.
        """
        while True:
            try:
                message = await self._spool.receive()
            except LinkClosed as error:
                raise _gone() from error
            if isinstance(message, Fetched):
                self._hand_out(message)

    async def _send(self, request: Fetch) -> None:
        try:
            await self._spool.send(request)
        except LinkClosed as error:
            raise _gone() from error

    def _hand_out(self, answer: Fetched) -> None:
        for wanted, payload in zip(self._asked.pop(answer.request_id, []), answer.payloads, strict=False):
            if not wanted.payload.done():
                wanted.payload.set_result(payload)


def _gone() -> LinkError:
    return LinkError("the link to the spool is closed; payloads cannot be judged without it, reconnect")
