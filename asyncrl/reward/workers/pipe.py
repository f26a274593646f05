"""
What a pool and its workers say to each other, over the worker's stdin and stdout.

    pool ── Load ─▶ worker          Loaded | Refused
    pool ── Judge [s0, s1, s2] ─▶   Judged(1) Judged(0) Judged(2)     one for each sample, as soon as it is known

A frame is a length (4 bytes, little-endian) and that many bytes of msgpack.
"""

import asyncio
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from asyncrl.config.sections import Reward
from asyncrl.reward.verifier import Verdict

HEADER_BYTES = 4


class Said(Struct, frozen=True, array_like=True, tag=True):
    """Base of what crosses the pipe."""


class Load(Said, frozen=True):
    """The first frame: be a worker for these functions."""

    reward: Reward


class Judge(Said, frozen=True):
    """Judge these. The next `Judge` comes after the last `Judged`."""

    samples: list[Raw]
    """Encoded `Sample` each: encoded where a sample is handed in, so that a bad one fails alone."""


class Loaded(Said, frozen=True):
    """Ready."""

    concurrent: bool
    """The function is async: all samples of a `Judge` are begun at once. Otherwise they are taken in order."""


class Refused(Said, frozen=True):
    """A function cannot be used; the worker exits."""

    reason: str


class Judged(Said, frozen=True):
    """One sample of the last `Judge`: a verdict, or why there is none."""

    index: int
    verdict: Verdict | None
    fault: str = ""
    retryable: bool = False


ToWorker = Load | Judge
FromWorker = Loaded | Refused | Judged


def hung(timeout_s: float) -> str:
    """What is said of a sample that got no verdict in time."""
    return f"the function hung: no verdict within {timeout_s:g} s; make it faster or raise reward.timeout_s"


_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: Said) -> bytes:
    """A frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def read(stream: BinaryIO) -> ToWorker | None:
    """The next frame, in the worker; None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    length = int.from_bytes(header, "little")
    body = stream.read(length)
    if len(header) < HEADER_BYTES or len(body) < length:
        return None
    message: ToWorker = _to_worker.decode(body)
    return message


async def receive(reader: asyncio.StreamReader) -> FromWorker | None:
    """The next frame, in the pool; None when the worker is gone or what it writes is no frame."""
    try:
        header = await reader.readexactly(HEADER_BYTES)
        body = await reader.readexactly(int.from_bytes(header, "little"))
        message: FromWorker = _from_worker.decode(body)
    except (asyncio.IncompleteReadError, msgspec.DecodeError, UnicodeDecodeError, ConnectionError):
        return None
    return message
