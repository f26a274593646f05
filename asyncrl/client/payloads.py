"""
Trajectories out of a spool, by reference: checked, decoded, and asked for together.

    fetch(ref) ─┐
    fetch(ref) ─┼─▶ Fetch [ref, ref, ref] ─▶ spool ─▶ Fetched [bytes, bytes, bytes] ─▶ a `Trajectory` each
    fetch(ref) ─┘

What is wanted while a request is being sent travels in the next one.
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
"""In one `Fetch`: at 20 kB a payload its answer is about a megabyte."""

_decoder = msgspec.msgpack.Decoder(Trajectory)


class Wanted(Struct, frozen=True, eq=False):
    """A payload somebody waits for."""

    ref: SpoolRef
    payload: "asyncio.Future[memoryview]"


class PayloadClient:
    """
    One end of a link to a spool, for many who fetch at once.

    Args:
        link: To the spool. Borrowed; `run` must be running for anything to arrive.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._wanted: deque[Wanted] = deque()
        self._is_wanted = asyncio.Event()
        self._asked: dict[int, list[Wanted]] = {}
        self._request_ids = count(1)

    async def run(self) -> None:
        """
        Ask and hand out until cancelled.

        Raises:
            LinkError: The spool is gone; `LinkReset` if it restarted.
        """
        asking = asyncio.create_task(self._ask())
        hearing = asyncio.create_task(self._hear())
        try:
            done, _ = await asyncio.wait([asking, hearing], return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        except LinkClosed as error:
            raise LinkError("the link to the spool is closed: payloads cannot be read, reconnect") from error
        finally:
            asking.cancel()
            hearing.cancel()
            await asyncio.gather(asking, hearing, return_exceptions=True)

    async def fetch(self, ref: SpoolRef) -> Trajectory:
        """
        One trajectory.

        Raises:
            DecodeError: The spool no longer has it, or it is not what was stored.
        """
        return read_trajectory(ref, await self._want(ref))

    async def fetch_all(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[Trajectory]:
        """
        Trajectories in the order of ``refs``.

        Raises:
            DecodeError: One of them cannot be read.
            TimeoutError: Not all came within ``deadline_s``.
        """
        async with asyncio.timeout(deadline_s):
            # Futures, and not tasks: of hundreds at a time, a task each costs more than reading what it waits for.
            payloads = [self._want(ref) for ref in refs]
            return [read_trajectory(ref, await payload) for ref, payload in zip(refs, payloads, strict=True)]

    def _want(self, ref: SpoolRef) -> "asyncio.Future[memoryview]":
        wanted = Wanted(ref, asyncio.get_running_loop().create_future())
        self._wanted.append(wanted)
        self._is_wanted.set()
        return wanted.payload

    async def _ask(self) -> None:
        while True:
            await self._is_wanted.wait()
            batch = [self._wanted.popleft() for _ in range(min(MAX_REFS, len(self._wanted)))]
            if not self._wanted:
                self._is_wanted.clear()
            request_id = next(self._request_ids)
            self._asked[request_id] = batch
            await self._link.send(Fetch(request_id, [wanted.ref for wanted in batch]))

    async def _hear(self) -> None:
        while True:
            message = await self._link.receive()
            if isinstance(message, Fetched):
                self._hand_out(message)

    def _hand_out(self, answer: Fetched) -> None:
        for wanted, payload in zip(self._asked.pop(answer.request_id, []), answer.payloads, strict=False):
            if not wanted.payload.done():
                wanted.payload.set_result(payload)


def read_trajectory(ref: SpoolRef, payload: memoryview) -> Trajectory:
    """
    The trajectory in a payload. Its arrays stay views into it.

    Raises:
        DecodeError: The spool no longer has it, or it is not what was stored.
    """
    place = f"the payload at {ref.spool}, segment {ref.segment}, offset {ref.offset}"
    if not payload:
        raise DecodeError(f"the spool no longer has {place}")
    if (found := zlib.crc32(payload)) != ref.crc32:
        raise DecodeError(f"{place} is damaged: expected checksum {ref.crc32:#010x}, got {found:#010x}")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{place} is no trajectory: {error}") from error
