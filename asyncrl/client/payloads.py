"""
Client of a spool: fetches trajectories by reference, checks and decodes them.

    fetch(ref) ─┐
    fetch(ref) ─┼─▶ Fetch [ref, ref, ref] ─▶ spool ─▶ Fetched [bytes, bytes, bytes] ─▶ a `Trajectory` each
    fetch(ref) ─┘

References requested while a request is being sent are collected for the next one.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Sequence
from itertools import count

import msgspec
from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.errors import DecodeError, LinkClosed, LinkError
from asyncrl.messages import Fetch, Fetched, SpoolRef, Trajectory

MAX_REFS = 64
"""References in one `Fetch`: at 20 kB a payload, the answer is about a megabyte."""

_decoder = msgspec.msgpack.Decoder(Trajectory)


class PendingFetch(Struct, frozen=True, eq=False):
    """A payload that was requested and has not arrived."""

    ref: SpoolRef
    payload: "asyncio.Future[memoryview]"


class PayloadClient:
    """
    Fetches payloads over one link, for any number of concurrent callers.

    Args:
        link: Link to the spool, owned by the caller. Payloads arrive only while `run` is running.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._wanted: deque[PendingFetch] = deque()
        self._is_wanted = asyncio.Event()
        self._requested: dict[int, list[PendingFetch]] = {}
        self._request_ids = count(1)

    async def run(self) -> None:
        """
        Send requests and deliver answers until cancelled.

        Raises:
            LinkError: The spool is lost; `LinkReset` if it restarted.
        """
        requesting = asyncio.create_task(self._send_requests())
        receiving = asyncio.create_task(self._receive_answers())
        try:
            done, _ = await asyncio.wait([requesting, receiving], return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        except LinkClosed as error:
            raise LinkError("the link to the spool is closed: payloads cannot be read, reconnect") from error
        finally:
            requesting.cancel()
            receiving.cancel()
            await asyncio.gather(requesting, receiving, return_exceptions=True)

    async def fetch(self, ref: SpoolRef) -> Trajectory:
        """
        Fetch one trajectory.

        Raises:
            DecodeError: The spool no longer has it, or the payload is damaged.
        """
        return read_trajectory(ref, await self._request(ref))

    async def fetch_all(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[Trajectory]:
        """
        Fetch trajectories, in the order of ``refs``.

        Raises:
            DecodeError: One of them cannot be read.
            TimeoutError: Not all arrived within ``deadline_s``.
        """
        async with asyncio.timeout(deadline_s):
            # Futures and not tasks: with hundreds at a time, a task each costs more than reading the payloads.
            payloads = [self._request(ref) for ref in refs]
            return [read_trajectory(ref, await payload) for ref, payload in zip(refs, payloads, strict=True)]

    def _request(self, ref: SpoolRef) -> "asyncio.Future[memoryview]":
        wanted = PendingFetch(ref, asyncio.get_running_loop().create_future())
        self._wanted.append(wanted)
        self._is_wanted.set()
        return wanted.payload

    async def _send_requests(self) -> None:
        while True:
            await self._is_wanted.wait()
            batch = [self._wanted.popleft() for _ in range(min(MAX_REFS, len(self._wanted)))]
            if not self._wanted:
                self._is_wanted.clear()
            request_id = next(self._request_ids)
            self._requested[request_id] = batch
            await self._link.send(Fetch(request_id, [wanted.ref for wanted in batch]))

    async def _receive_answers(self) -> None:
        while True:
            message = await self._link.receive()
            if isinstance(message, Fetched):
                self._deliver(message)

    def _deliver(self, answer: Fetched) -> None:
        for wanted, payload in zip(self._requested.pop(answer.request_id, []), answer.payloads, strict=False):
            if not wanted.payload.done():
                wanted.payload.set_result(payload)


def read_trajectory(ref: SpoolRef, payload: memoryview) -> Trajectory:
    """
    Decode a payload. The arrays of the trajectory stay views into it.

    Raises:
        DecodeError: The payload is empty (the spool no longer has it), or damaged.
    """
    place = f"the payload at {ref.spool}, segment {ref.segment}, offset {ref.offset}"
    if not payload:
        raise DecodeError(f"the spool no longer has {place}")
    if (found := zlib.crc32(payload)) != ref.crc32:
        raise DecodeError(f"{place} is damaged: expected checksum {ref.crc32:#010x}, got {found:#010x}")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{place} is not a trajectory: {error}") from error
