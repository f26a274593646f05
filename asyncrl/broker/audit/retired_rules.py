"""The table that lets a group end once, against the records of the groups that ended."""

from collections.abc import Iterator, Mapping

from asyncrl.broker.ledger.audit import LEDGER
from asyncrl.broker.ledger.record_book import RecordBook


def retired_problems(book: RecordBook, before: Mapping[int, str], after: Mapping[int, str]) -> Iterator[str]:
    """
    Sentences about groups that the table and the records end differently.

    Args:
        before: The table before the records were read: it has no group that they lack.
        after: The table after that: it lacks no group that they have.
    """
    ends = {group_id: f"taken/{step}" for step, group_ids in book.steps.items() for group_id in group_ids}
    ends |= dict.fromkeys(book.dropped, "dropped")
    for group_id, how in before.items():
        if (expected := ends.get(group_id, "no end")) != how:
            yield f"{LEDGER}: its table retired has group {group_id} as {how}: expected {expected}, as in the records"
    for group_id in sorted(ends.keys() - after.keys()):
        yield f"{LEDGER}: its table retired lacks group {group_id}: expected {ends[group_id]}, as in the records"
