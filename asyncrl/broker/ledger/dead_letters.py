"""Dead letters: units that failed for good, with the reason and the dataset row of their prompt."""

from collections.abc import Iterable

from msgspec import Struct

from asyncrl.broker.ledger.records import Admitted, AnyRecord, FailedAt, FailedAttempt
from asyncrl.messages.words import Split


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A unit that is not tried again."""

    split: Split
    group_id: int
    index: int
    epoch: int | None
    """Passes over the dataset before this one; None for held-out prompts, which are not admitted."""
    row: int | None
    """Row, from 0, of the training data or of the held-out data; None in ledgers without that of a held-out prompt."""
    stage: FailedAt
    attempts: int
    reason: str
    """Reason of the last attempt."""


def dead_letters(records: Iterable[AnyRecord]) -> list[DeadLetter]:
    """Dead letters of a ledger, in the order the units were given up."""
    admitted: dict[int, Admitted] = {}
    letters = []
    for record in records:
        match record:
            case Admitted(group_id=group_id):
                admitted[group_id] = record
            case FailedAttempt(unit=unit, is_final=True, held_out_row=held_out_row):
                source = admitted.get(unit.group_id) if unit.split == "train" else None
                row = source.row if source else held_out_row
                letters.append(
                    DeadLetter(
                        split=unit.split,
                        group_id=unit.group_id,
                        index=unit.index,
                        epoch=source.epoch if source else None,
                        row=row if row >= 0 else None,
                        stage=record.stage,
                        attempts=record.attempts,
                        reason=record.reason,
                    )
                )
            case _:
                pass
    return letters
