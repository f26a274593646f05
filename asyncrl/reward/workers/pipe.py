"""
Messages between a pool and a worker, over the worker's stdin and stdout.

    pool ── Load ─▶ worker          Loaded | Refused
    pool ── Judge [i0, i1, i2] ─▶   Judged(1) Judged(0) Judged(2)     one for each input, as soon as it is judged

A frame is a length (4 bytes, little-endian) and that many bytes of msgpack.
"""

import asyncio
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from asyncrl.config.sections import Reward
from asyncrl.reward.verifier import Verdict

HEADER_BYTES = 4


class PipeMessage(Struct, frozen=True, array_like=True, tag=True): ...


class Load(PipeMessage, frozen=True):
    reward: Reward


class Judge(PipeMessage, frozen=True):
    """Judge these inputs. The next `Judge` comes after the last `Judged`."""

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

    index: int
    """Position in ``Judge.inputs``."""
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
        header = await reader.readexactly(HEADER_BYTES)
        body = await reader.readexactly(int.from_bytes(header, "little"))
        message: FromWorker = _from_worker.decode(body)
    except (asyncio.IncompleteReadError, msgspec.DecodeError, UnicodeDecodeError, ConnectionError):
        return None
    return message
