"""Reads trajectories back from a spool: ask by reference, check, decode. Used by every role that looks inside."""

import asyncio
import zlib
from collections.abc import Sequence

import msgspec

from asyncrl.actor.link import Link
from asyncrl.errors import DecodeError, LinkError
from asyncrl.messages import Fetch, Fetched, SpoolRef, Trajectory

_decoder = msgspec.msgpack.Decoder(Trajectory)


def read_trajectory(ref: SpoolRef, payload: memoryview) -> Trajectory:
    """
    The trajectory in a payload. Its arrays stay views into it.

    Raises:
        DecodeError: The spool no longer has it, or it is not what was stored.
    """
    if len(payload) != ref.length or zlib.crc32(payload) != ref.crc32:
        raise DecodeError(
            f"payload at {ref.spool}/{ref.segment}+{ref.offset}: expected {ref.length} bytes with checksum "
            f"{ref.crc32:08x}, got {len(payload)} bytes"
        )
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"payload at {ref.spool}/{ref.segment}+{ref.offset} is no trajectory: {error}") from error


class PayloadClient:
    """
    Many fetches at once over one link.

    Args:
        link: To a spool. Borrowed; `run` must be running for answers to arrive.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[list[memoryview]]] = {}

    async def run(self) -> None:
        """Hand answers to whoever asked, until the link closes; then they all fail."""
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, Fetched):
                    self._answer(message)
        except LinkError as error:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            raise

    def _answer(self, message: Fetched) -> None:
        future = self._waiting.pop(message.request_id, None)
        if future is not None and not future.done():
            future.set_result(message.payloads)

    async def fetch(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[memoryview]:
        """
        The payloads of ``refs``, in order; one the spool no longer has is empty.

        Raises:
            LinkError: The link broke.
            TimeoutError: No answer within ``deadline_s``.
        """
        self._next_id += 1
        request_id = self._next_id
        future: asyncio.Future[list[memoryview]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            async with asyncio.timeout(deadline_s):
                await self._link.send(Fetch(request_id, list(refs)))
                return await future
        finally:
            self._waiting.pop(request_id, None)
