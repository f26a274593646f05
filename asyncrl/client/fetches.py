"""
Payloads and pictures requested from one spool, over one link after the other.

    request(ref) ───┐
    request(ref) ───┼─▶ Fetch [ref, ref] [digest] ─▶ spool ─▶ Fetched [bytes, bytes, bytes] ─▶ a future each
    request(image) ─┘

What is requested while a request is being sent are collected for the next one. The bytes requested and not yet
received are bounded: the spool holds what it has sent until it has arrived. What a lost link has not answered is
requested again over the next one.
"""

import asyncio
from collections import deque
from itertools import count, islice

from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.client.chunks import cut_by_bytes, wanted_bytes
from asyncrl.errors import LinkClosed, LinkError
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef
from asyncrl.messages.trajectory import Image

MAX_REFS = 64
"""Most payloads and pictures in one `Fetch`; with payloads of 20 kB the answer is about a megabyte."""
MAX_REQUESTED_BYTES = 64 << 20
"""Bytes of payloads requested and not yet received, at which the next request waits."""

Payload = asyncio.Future[memoryview | None]
"""Future of a payload or picture; its result is None if the spool was given up."""


class PendingFetch(Struct, frozen=True, eq=False):
    """Payload or picture that was requested and has not arrived."""

    wanted: SpoolRef | Image
    payload: Payload
    waits: bool
    """True to wait while the spool is away; else `away` ends the request."""


class FetchQueue:
    """Requests to one spool, of any number of concurrent callers."""

    def __init__(self) -> None:
        self._wanted: deque[PendingFetch] = deque()
        self._is_wanted = asyncio.Event()
        self._requested: dict[int, list[PendingFetch]] = {}
        self._requested_bytes = 0
        self._has_arrived = asyncio.Event()
        self._request_ids = count(1)

    def request(self, what: SpoolRef | Image, *, waits: bool) -> Payload:
        """Request a payload or a picture. An empty result means that the spool does not have it."""
        wanted = PendingFetch(what, asyncio.get_running_loop().create_future(), waits)
        self._wanted.append(wanted)
        self._is_wanted.set()
        return wanted.payload

    async def run(self, link: Link) -> None:
        """
        Send requests and deliver answers until cancelled. Later calls go on with other links.

        Raises:
            LinkError: The link is lost; `LinkReset` if the spool restarted.
        """
        self._request_again()
        requesting = asyncio.create_task(self._send_requests(link))
        receiving = asyncio.create_task(self._receive_answers(link))
        try:
            done, _ = await asyncio.wait([requesting, receiving], return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        except LinkClosed as error:
            raise LinkError("the link to the spool is closed") from error
        finally:
            requesting.cancel()
            receiving.cancel()
            await asyncio.gather(requesting, receiving, return_exceptions=True)

    def away(self, error: Exception) -> None:
        """The spool is away: raise ``error`` in all callers that do not wait for it."""
        self._request_again()
        for wanted in self._wanted:
            if not wanted.waits:
                wanted.payload.set_exception(error)
        self._forget_done()

    def give_up(self) -> None:
        """The spool will not return: answer all callers with None."""
        self._request_again()
        for wanted in self._wanted:
            wanted.payload.set_result(None)
        self._forget_done()

    def _request_again(self) -> None:
        unanswered = [wanted for request in self._requested.values() for wanted in request]
        self._wanted.extendleft(reversed(unanswered))
        self._requested.clear()
        self._requested_bytes = 0
        self._forget_done()

    def _forget_done(self) -> None:
        """Forget requests whose callers were answered, or have given up."""
        self._wanted = deque(wanted for wanted in self._wanted if not wanted.payload.done())
        if self._wanted:
            self._is_wanted.set()
        else:
            self._is_wanted.clear()

    async def _send_requests(self, link: Link) -> None:
        while True:
            await self._is_wanted.wait()
            while self._requested_bytes >= MAX_REQUESTED_BYTES:
                self._has_arrived.clear()
                await self._has_arrived.wait()
            await link.send(self._next_fetch())

    def _next_fetch(self) -> Fetch:
        """Take the first requests out of the queue, as many as fit into a message."""
        fitting = next(cut_by_bytes((wanted.wanted for wanted in islice(self._wanted, MAX_REFS)), wanted_bytes))
        requested = [self._wanted.popleft() for _ in fitting]
        if not self._wanted:
            self._is_wanted.clear()
        requested.sort(key=lambda wanted: isinstance(wanted.wanted, Image))  # the order of the answer
        request_id = next(self._request_ids)
        self._requested[request_id] = requested
        self._requested_bytes += sum(map(wanted_bytes, fitting))
        refs = [what for what in fitting if isinstance(what, SpoolRef)]
        return Fetch(request_id, refs, [what.digest for what in fitting if isinstance(what, Image)])

    async def _receive_answers(self, link: Link) -> None:
        while True:
            message = await link.receive()
            if isinstance(message, Fetched):
                self._deliver(message)

    def _deliver(self, answer: Fetched) -> None:
        requested = self._requested.pop(answer.request_id, [])
        self._requested_bytes -= sum(wanted_bytes(wanted.wanted) for wanted in requested)
        self._has_arrived.set()
        for wanted, payload in zip(requested, answer.payloads, strict=False):
            if not wanted.payload.done():
                wanted.payload.set_result(payload)
