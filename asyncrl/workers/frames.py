"""
Frames between a pool and a worker, over the worker's stdin and stdout.

    length (4 bytes, little-endian) ─ that many bytes: one message, in whatever form its pool speaks

A worker runs code of users, which can write to its pipe what it likes: a pool sets a limit for lengths, and trusts no
message. This module needs the standard library of Python 3.9 alone: workers of environments load it under other
interpreters.
"""

from __future__ import annotations

import os
import signal
from typing import IO

from asyncrl.workers.printed import PR_SET_PDEATHSIG, mark_prints, prctl

HEADER_BYTES = 4
MAX_BYTES = (1 << 8 * HEADER_BYTES) - 1


class NotAFrame(EOFError):
    """The bytes are no frame: something else was written to the pipe, which is as good as ended."""


def framed(message: bytes) -> bytes:
    """Put the length before a message."""
    return len(message).to_bytes(HEADER_BYTES, "little") + message


class Frames:
    """Cuts a stream of bytes into messages of at most ``max_bytes``."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = bytearray()
        self._taken = 0
        """Bytes at the beginning that belong to messages already taken."""

    def feed(self, chunk: bytes) -> None:
        """Append the next bytes of the stream."""
        del self._bytes[: self._taken]
        self._taken = 0
        self._bytes += chunk

    def take(self) -> bytes | None:
        """Take the next message; None until it is complete. Raises `NotAFrame` if it is longer than allowed."""
        begin = self._taken + HEADER_BYTES
        if len(self._bytes) < begin:
            return None
        length = int.from_bytes(self._bytes[self._taken : begin], "little")
        if length > self._max_bytes:
            raise NotAFrame
        if len(self._bytes) < begin + length:
            return None
        self._taken = begin + length
        return bytes(self._bytes[begin : self._taken])


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read the next message, blocking; None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    length = int.from_bytes(header, "little")
    message = stream.read(length)
    return None if len(header) < HEADER_BYTES or len(message) < length else message


def take_pipes() -> tuple[int, int]:
    """
    Make this process a worker, which dies with its keeper, and duplicate the pipes from and to its pool.

    For the code that it runs, stdin becomes empty and stdout becomes stderr.

    Returns:
        File descriptors of the pipe from the pool and of the pipe to it.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without Linux, only the end of stdin ends it
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    mark_prints()
    return inbox, outbox
