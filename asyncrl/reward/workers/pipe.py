"""
Messages between a pool and a worker, over the worker's stdin and stdout.

    pool ── Load ─▶ worker          Loaded | Refused
    pool ── Judge(5, [i, j, k]) ─▶   Judged(6) Judged(5) Judged(7)     one for each input, as soon as it is judged

A frame is a length (4 bytes, little-endian) and that many bytes of msgpack. The verifier runs in the process that
answers, so it can write what it likes there: the pool trusts neither a length nor a number.
"""

import asyncio
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from asyncrl.config.sections.reward import Reward
from asyncrl.reward.verifier import Verdict

HEADER_BYTES = 4
MAX_ANSWER_BYTES = 1 << 16
"""Longest frame from a worker: above 64 metrics with names of 100 characters of 4 bytes."""


class PipeMessage(Struct, frozen=True, array_like=True, tag=True): ...


class Load(PipeMessage, frozen=True):
    reward: Reward


class Judge(PipeMessage, frozen=True):
    """Judge these inputs. The next `Judge` comes after the last `Judged`."""

    first: int
    """Number of the first input; numbers go on over the whole life of a worker, so that a late answer is noticed."""
    inputs: list[Raw]
    """An encoded `VerifierInput` each: the pool encodes them one by one, so that a bad one fails alone."""


class Loaded(PipeMessage, frozen=True):
    concurrent: bool
    """The verifier is async: all inputs of a `Judge` are judged concurrently. Otherwise one after the other."""


class Refused(PipeMessage, frozen=True):
    """A verifier cannot be used; the worker exits."""

    reason: str


class Judged(PipeMessage, frozen=True):
    """Verdict on one input of the last `Judge`, or the reason why there is none."""

    number: int
    """Number of the input: ``Judge.first`` plus its position."""
    verdict: Verdict | None
    reason: str = ""
    retryable: bool = False


ToWorker = Load | Judge
FromWorker = Loaded | Refused | Judged


def hung_message(timeout_s: float) -> str:
    return f"the function hung: no verdict within {timeout_s:g} s; make it faster or raise reward.timeout_s"


_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: PipeMessage) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def read(stream: BinaryIO) -> ToWorker | None:
    """Read the next frame, in the worker; None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    length = int.from_bytes(header, "little")
    body = stream.read(length)
    if len(header) < HEADER_BYTES or len(body) < length:
        return None
    message: ToWorker = _to_worker.decode(body)
    return message


async def receive(reader: asyncio.StreamReader) -> FromWorker | None:
    """Read the next frame, in the pool; None if the worker has exited or wrote something else than a frame."""
    try:
        length = int.from_bytes(await reader.readexactly(HEADER_BYTES), "little")
        if length > MAX_ANSWER_BYTES:
            return None
        body = await reader.readexactly(length)
        message: FromWorker = _from_worker.decode(body)
    except (asyncio.IncompleteReadError, msgspec.DecodeError, UnicodeDecodeError, ConnectionError):
        return None
    return message
