"""
The pool's side of the pipe to a worker: see `asyncrl.environment.worker.pipe` for the frames.

The environment runs in the process that answers, so it can write what it likes there: neither a length nor a number
nor a value is trusted.
"""

import asyncio
from typing import Any

import msgspec
from msgspec import Raw, Struct

from asyncrl.environment.interface import Description

HEADER_BYTES = 4
MAX_FRAME_BYTES = 256 << 20
"""Longest frame of a worker; a snapshot is the largest thing in one."""
CHUNK_BYTES = 1 << 18


class FromWorker(Struct, frozen=True):
    """A frame of a worker; one of its fields says what it is."""

    n: int = -1
    """Number of the call."""
    begun: bool = False
    answer: Raw = Raw()
    """Still encoded: its type is that of the call."""
    error: str = ""
    retryable: bool = True
    loaded: Description | None = None
    refused: str = ""


class NotAFrame(Exception):
    """The bytes are no frame: something else than the worker has written to the pipe."""


_decoder = msgspec.json.Decoder(FromWorker)
_encoder = msgspec.json.Encoder()


def encode(frame: Any) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


class FrameReader:
    """Reads frames from a worker's stdout, as many at once as have come."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._bytes = bytearray()

    async def read(self) -> list[FromWorker]:
        """Return the next frames, none if one is still incomplete; raises `EOFError` and `NotAFrame`."""
        try:
            chunk = await self._stream.read(CHUNK_BYTES)
        except ConnectionError as error:
            raise EOFError from error
        if not chunk:
            raise EOFError
        self._bytes += chunk
        return self._cut()

    def _cut(self) -> list[FromWorker]:
        frames = []
        start = 0
        while len(self._bytes) - start >= HEADER_BYTES:
            begin = start + HEADER_BYTES
            length = int.from_bytes(self._bytes[start:begin], "little")
            if length > MAX_FRAME_BYTES:
                raise NotAFrame
            if len(self._bytes) < begin + length:
                break
            try:
                frames.append(_decoder.decode(bytes(self._bytes[begin : begin + length])))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise NotAFrame from error
            start = begin + length
        del self._bytes[:start]
        return frames
