"""
Trajectories that wait to be settled, finished or handed over, and their encoding for the spool.

    add ─▶ fresh ─▶ put ─▶ settled: forgotten
                     └─ not settled within `RESEND_S`, or a new session ─▶ put again

Pure bookkeeping: callers pass the time in and send what is returned.
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
"""Seconds to collect results before a `Put`: handling a message costs as much as handling a trajectory."""
RESEND_S = 5.0
"""Seconds after which an unsettled result is put again. Spool and broker recognise repeats."""


class UnsettledResults:
    """Results by unit, each kept until it is settled."""

    def __init__(self) -> None:
        self._items: dict[Unit, tuple[PutItem, float]] = {}
        self._fresh: list[PutItem] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: PutItem, now_s: float) -> None:
        self._items[item.unit] = (item, now_s)
        self._fresh.append(item)

    def __iter__(self) -> Iterator[PutItem]:
        return (item for item, _ in self._items.values())

    def settle(self, unit: Unit) -> None:
        """Forget a result that is on disk or no longer wanted."""
        self._items.pop(unit, None)

    def settle_unfinished(self, item: Leased) -> None:
        """Forget an unfinished result of this lease; a finished one, or one of a later lease, stays."""
        found, _ = self._items.get(item.unit, (None, 0.0))
        if found and found.lease_id == item.lease_id and found.summary.finish_reason == "unfinished":
            del self._items[item.unit]

    def mark_all_fresh(self) -> None:
        """Have `take_fresh` return everything again."""
        self._fresh = list(self)

    def take_fresh(self) -> list[PutItem]:
        """Results that were not put yet."""
        fresh, self._fresh = self._fresh, []
        return [item for item in fresh if item.unit in self._items]

    def take_overdue(self, now_s: float) -> list[PutItem]:
        """Results last put at least `RESEND_S` ago; they count as put at ``now_s``."""
        late = [item for item, put_s in self._items.values() if now_s - put_s >= RESEND_S]
        for item in late:
            self._items[item.unit] = (item, now_s)
        return late


def to_put_item(
    lease: Lease, unit: Unit, prompt_ids: list[int], completion: Completion, *, text: str, node: str
) -> PutItem:
    """Encode a completion and its text (empty while unfinished). Raises `EngineError` if it is inconsistent."""
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


def to_completion(trajectory: Trajectory) -> Completion:
    """Decode a stored trajectory, to resume from it."""
    num_tokens = len(trajectory.completion_ids) // 4
    return Completion(
        completion_ids=list(struct.unpack(f"<{num_tokens}i", trajectory.completion_ids)),
        behavior_logprobs=list(struct.unpack(f"<{num_tokens}f", trajectory.behavior_logprobs)),
        spans=trajectory.spans,
        finish_reason=trajectory.finish_reason,
        generate_s=trajectory.generate_s,
    )


def check_extends(completion: Completion, prefix: Completion) -> None:
    """Raise a retryable `EngineError` unless ``completion`` begins with the tokens of ``prefix``."""
    num_tokens = len(prefix.completion_ids)
    if (
        completion.completion_ids[:num_tokens] != prefix.completion_ids
        or len(completion.behavior_logprobs) < num_tokens
    ):
        raise EngineError(f"the engine's completion does not begin with the {num_tokens} tokens it had to resume from")


def _check(completion: Completion) -> None:
    """Validate a completion of a host's engine, so that no inconsistent one reaches the trainer."""
    num_tokens, num_logprobs = len(completion.completion_ids), len(completion.behavior_logprobs)
    if not num_tokens or num_logprobs != num_tokens:
        raise EngineError(
            f"the engine returned {num_tokens} tokens and {num_logprobs} log-probs; expected at least one token, and "
            f"one log-prob per token",
            retryable=False,
        )
    spans = [(span.start, span.end) for span in completion.spans]
    are_contiguous = [start for start, _ in spans] + [num_tokens] == [0] + [end for _, end in spans]
    if not are_contiguous or any(start >= end for start, end in spans):
        raise EngineError(
            f"the engine's spans {spans} do not cover its {num_tokens} tokens in order without gaps", retryable=False
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
