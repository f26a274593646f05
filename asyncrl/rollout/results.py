"""
Trajectories a rollout is done with, until they are known to be on disk: finished ones, and those it hands over.

    add ─▶ fresh ─▶ put ─▶ settled: forgotten
                     └─ not settled for `RESEND_S`, or the link began anew ─▶ put again

Pure bookkeeping: callers pass the time in and send what comes out.
"""

import array
import struct
import sys
from collections.abc import Iterator

import msgspec

from asyncrl.errors import EngineError
from asyncrl.messages import Lease, Leased, PutItem, Trajectory, TrajectorySummary, Unit
from asyncrl.rollout.engine import Completion

COLLECT_S = 0.005
"""Results of a few decode steps travel together: a `Put` costs everybody on its way as much as a trajectory does."""
RESEND_S = 5.0
"""A result not settled for this long is put again. The spool and the broker know repeats when they see them."""


class UnsettledResults:
    """Results by unit. Nothing is forgotten before it is settled."""

    def __init__(self) -> None:
        self._items: dict[Unit, tuple[PutItem, float]] = {}
        self._fresh: list[PutItem] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: PutItem, now_s: float) -> None:
        """A completion is finished."""
        self._items[item.unit] = (item, now_s)
        self._fresh.append(item)

    def __iter__(self) -> Iterator[PutItem]:
        return (item for item, _ in self._items.values())

    def settle(self, unit: Unit) -> None:
        """It is on disk, or nobody wants it."""
        self._items.pop(unit, None)

    def settle_unfinished(self, item: Leased) -> None:
        """What was handed over of it is on disk. One that was finished since, or leased anew, is another matter."""
        found, _ = self._items.get(item.unit, (None, 0.0))
        if found and found.lease_id == item.lease_id and found.summary.finish_reason == "unfinished":
            del self._items[item.unit]

    def begin_anew(self) -> None:
        """Nothing that was put before counts as put."""
        self._fresh = list(self)

    def take_fresh(self) -> list[PutItem]:
        """What was never put."""
        fresh, self._fresh = self._fresh, []
        return [item for item in fresh if item.unit in self._items]

    def overdue(self, now_s: float) -> list[PutItem]:
        """What was put `RESEND_S` ago or earlier; it counts as put now."""
        late = [item for item, put_s in self._items.values() if now_s - put_s >= RESEND_S]
        for item in late:
            self._items[item.unit] = (item, now_s)
        return late


def result(lease: Lease, unit: Unit, prompt_ids: list[int], completion: Completion, *, text: str, node: str) -> PutItem:
    """
    A completion as it goes to the spool.

    Args:
        text: The completion, decoded; empty while it is unfinished.
        node: Who wrote it.

    Raises:
        EngineError: Not retryable: tokens, log-probs and spans do not fit each other.
    """
    _check(completion)
    trajectory = Trajectory(
        unit=unit,
        prompt_ids=_little_endian(array.array("i", prompt_ids)),
        completion_ids=_little_endian(array.array("i", completion.completion_ids)),
        behavior_logprobs=_little_endian(array.array("f", completion.behavior_logprobs)),
        spans=completion.spans,
        finish_reason=completion.finish_reason,
        text=text,
        node=node,
        generate_s=completion.generate_s,
    )
    payload = memoryview(_encoder.encode(trajectory))
    return PutItem(unit, lease.lease_id, _summary(len(prompt_ids), completion), payload)


_encoder = msgspec.msgpack.Encoder()


def completion_of(trajectory: Trajectory) -> Completion:
    """The other way: what a spool has of an unfinished trajectory, to go on from."""
    num_tokens = len(trajectory.completion_ids) // 4
    return Completion(
        completion_ids=list(struct.unpack(f"<{num_tokens}i", trajectory.completion_ids)),
        behavior_logprobs=list(struct.unpack(f"<{num_tokens}f", trajectory.behavior_logprobs)),
        spans=trajectory.spans,
        finish_reason=trajectory.finish_reason,
        generate_s=trajectory.generate_s,
    )


def check_goes_on(completion: Completion, begun: Completion) -> None:
    """
    Does a completion begin with what it was to go on from?

    Raises:
        EngineError: It does not: the engine made something of its own. Begun anew, it can do no harm.
    """
    num_begun = len(begun.completion_ids)
    if completion.completion_ids[:num_begun] != begun.completion_ids or len(completion.behavior_logprobs) < num_begun:
        raise EngineError(f"the engine did not go on from the {num_begun} tokens that were written before")


def _check(completion: Completion) -> None:
    """A host's engine is input: what it gets wrong must not reach the trainer."""
    num_tokens, num_logprobs = len(completion.completion_ids), len(completion.behavior_logprobs)
    if not num_tokens or num_logprobs != num_tokens:
        raise EngineError(
            f"the engine returned {num_tokens} tokens and {num_logprobs} log-probs; expected as many, and at least one",
            retryable=False,
        )
    spans = [(span.start, span.end) for span in completion.spans]
    are_joined = [start for start, _ in spans] + [num_tokens] == [0] + [end for _, end in spans]
    if not are_joined or any(start >= end for start, end in spans):
        raise EngineError(
            f"the engine's spans {spans} do not cover its {num_tokens} tokens one after the other", retryable=False
        )


def _summary(prompt_tokens: int, completion: Completion) -> TrajectorySummary:
    versions = [span.policy_version for span in completion.spans]
    return TrajectorySummary(
        num_tokens=len(completion.completion_ids),
        prompt_tokens=prompt_tokens,
        oldest_version=min(versions),
        newest_version=max(versions),
        num_spans=len(versions),
        finish_reason=completion.finish_reason,
    )


def _little_endian(values: "array.array[int] | array.array[float]") -> memoryview:
    if sys.byteorder == "big":
        values.byteswap()
    return memoryview(values).cast("B")
