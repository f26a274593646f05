"""Units that failed for good: what failed, why, and where the prompt stands in the dataset."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from asyncrl.broker.ledger.records import Admitted, AnyRecord, FailedAttempt
from asyncrl.messages import Split


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A unit that nobody tries again."""

    split: Split
    group_id: int
    index: int
    epoch: int | None
    """Passes over the dataset before this one; None for held-out prompts, which are not admitted."""
    row: int | None
    """Of the dataset, counted from 0; None as ``epoch``."""
    stage: Literal["rollout", "reward"]
    attempts: int
    reason: str
    """Of the last attempt."""


def dead_letters(records: Iterable[AnyRecord]) -> list[DeadLetter]:
    """Those of a ledger, in the order they were given up."""
    drawn: dict[int, Admitted] = {}
    letters = []
    for record in records:
        match record:
            case Admitted(group_id=group_id):
                drawn[group_id] = record
            case FailedAttempt(is_final=True):
                letters.append(_letter(record, drawn))
            case _:
                pass
    return letters


def _letter(failure: FailedAttempt, drawn: dict[int, Admitted]) -> DeadLetter:
    unit = failure.unit
    draw = drawn.get(unit.group_id) if unit.split == "train" else None
    return DeadLetter(
        split=unit.split,
        group_id=unit.group_id,
        index=unit.index,
        epoch=draw.epoch if draw else None,
        row=draw.row if draw else None,
        stage=failure.stage,
        attempts=failure.attempts,
        reason=failure.reason,
    )
