"""
Messages between a pool and a worker that judges, in frames of msgpack.

    pool ── WorkerLoad ──────────▶ worker     Loaded | UnusableVerifier
    pool ── Judge(5, [i, j, k]) ─▶            Judged(6) Judged(5) Judged(7)     one for each input, as soon as judged

The verifier runs in the process that answers, so it can write what it likes there: the pool trusts no number.
"""

from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from asyncrl.config.sections.reward import Reward
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput
from asyncrl.workers.frames import framed, read_frame

MAX_ANSWER_BYTES = 1 << 16
"""Longest message from a worker: above 64 metrics with names of 100 characters of 4 bytes."""
MAX_GROUP_BYTES = 1 << 26
"""Likewise, with verdicts on a group: as much as the verdicts of a step may take."""

Judgeable = VerifierInput | list[GroupMember]
"""One input: a completion or an episode, or those of a group."""


class PipeMessage(Struct, frozen=True, array_like=True, tag=True): ...


class WorkerLoad(PipeMessage, frozen=True):
    reward: Reward


class Judge(PipeMessage, frozen=True):
    """Judge these inputs. The next `Judge` comes after the last `Judged`."""

    first: int
    """Number of the first input; numbers go on over the whole life of a worker, so that a late answer is noticed."""
    inputs: list[Raw]
    """
    An encoded `VerifierInput` each, or list of `GroupMember`: the pool encodes them one by one, so that a bad one fails
    alone.
    """


class Loaded(PipeMessage, frozen=True):
    concurrent: bool
    """A function is async: all inputs of a `Judge` are judged concurrently. Otherwise one after the other."""


class UnusableVerifier(PipeMessage, frozen=True):
    """A verifier cannot be used; the worker exits."""

    reason: str


class Judged(PipeMessage, frozen=True):
    """Verdicts on one input of the last `Judge`, or the reason why there is none."""

    number: int
    """Number of the input: ``Judge.first`` plus its position."""
    verdicts: list[Verdict]
    """One, or of a group one for each member; empty if there is none."""
    reason: str = ""
    retryable: bool = False


ToWorker = WorkerLoad | Judge
FromWorker = Loaded | UnusableVerifier | Judged

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: PipeMessage) -> bytes:
    """Encode a message as a frame."""
    return framed(_encoder.encode(message))


def decode(message: bytes) -> FromWorker:
    """Decode a message from a worker; raises `msgspec.DecodeError` or `UnicodeDecodeError`."""
    answer: FromWorker = _from_worker.decode(message)
    return answer


def read(stream: BinaryIO) -> ToWorker | None:
    """Read the next message, in the worker; None at the end of the stream."""
    message = read_frame(stream)
    return None if message is None else _to_worker.decode(message)


def hung_message(timeout_s: float) -> str:
    return f"the function hung: no verdict within {timeout_s:g} s; make it faster or raise reward.timeout_s"
