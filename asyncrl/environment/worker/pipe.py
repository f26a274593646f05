"""
Frames between a pool and a worker: a length (4 bytes, little-endian), and that many bytes of JSON.

    pool ── {"load": {...}} ─▶ worker                {"loaded": {...}} | {"refused": "..."}
    pool ── {"n": 5, "episode": 2, "call": "step", ...} ─▶ worker
                                                     {"n": 5, "begun": true}       the method is running
                                                     {"n": 5, "answer": {...}} | {"n": 5, "error": "..."}
    pool ── {"n": 5, "cancel": true} ─▶ worker       an answer, or an error, still comes

Bytes are base64. Answers come in any order.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

from asyncrl.processes.printed import mark_prints

HEADER_BYTES = 4


def encode(frame: dict[str, Any]) -> bytes:
    """Encode a frame; raises `ValueError` or `TypeError` if a value has no form in JSON, as NaN has none."""
    body = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def begun(number: int) -> bytes:
    """Encode that a call is running."""
    body = b'{"n":%d,"begun":true}' % number
    return len(body).to_bytes(HEADER_BYTES, "little") + body


class Frames:
    """Collects bytes, and cuts them into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Return the frames that are complete with this chunk."""
        self._bytes += chunk
        frames = []
        start = 0
        while len(self._bytes) - start >= HEADER_BYTES:
            begin = start + HEADER_BYTES
            end = begin + int.from_bytes(self._bytes[start:begin], "little")
            if len(self._bytes) < end:
                break
            frames.append(json.loads(self._bytes[begin:end]))
            start = end
        del self._bytes[:start]
        return frames


class Inbox(asyncio.Protocol):
    """Hands over each frame of stdin; ends the process with stdin."""

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        self._receive = receive
        self._frames = Frames()

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._receive(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)  # the keeper ends what was started


class Outbox:
    """Sends frames; answers of one turn of the loop are written at once."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._pid = os.getpid()

    def send(self, frame: bytes) -> None:
        if os.getpid() != self._pid:  # the environment forked, and this is the copy
            os._exit(1)
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(frame)

    def begin(self, number: int) -> None:
        """Say now that a call is running, after all that is waiting: the call may block or end the process."""
        self.send(begun(number))
        self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._transport.write(b"".join(self._waiting))
            self._waiting.clear()


def take_pipes() -> tuple[int, int]:
    """Duplicate the pipes from and to the pool; stdin of the environment becomes empty, its stdout becomes stderr."""
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    mark_prints()
    return inbox, outbox


async def open_outbox(fd: int) -> Outbox:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(fd, "wb", buffering=0))
    return Outbox(transport, loop)


async def open_inbox(fd: int, receive: Callable[[dict[str, Any]], None]) -> None:
    """Call ``receive`` with each frame from now on."""
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: Inbox(receive), os.fdopen(fd, "rb", buffering=0))
