"""The table of ended groups against the records."""

from asyncrl.broker.audit.run_rules import retired_problems
from asyncrl.broker.ledger.records import Dropped, Taken
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.config.sections.schedule import Schedule

BOOK = LedgerState(Schedule())
BOOK.add(Taken(0, [1, 2]))
BOOK.add(Dropped(3, "bad", 0))
TABLE = {1: "taken/0", 2: "taken/0", 3: "dropped"}


def test_a_table_that_fits() -> None:
    assert list(retired_problems(BOOK, TABLE, TABLE)) == []


def test_groups_that_end_while_the_records_are_read() -> None:
    assert list(retired_problems(BOOK, {}, TABLE | {4: "taken/1"})) == []


def test_rows_that_differ_are_too_many_or_are_missing() -> None:
    assert list(retired_problems(BOOK, TABLE | {1: "dropped"}, TABLE)) == [
        "ledger.sqlite: its table retired has group 1 as dropped: expected taken/0, as in the records"
    ]
    assert list(retired_problems(BOOK, {4: "dropped"}, TABLE)) == [
        "ledger.sqlite: its table retired has group 4 as dropped: expected no end, as in the records"
    ]
    assert list(retired_problems(BOOK, {}, {1: "taken/0"})) == [
        "ledger.sqlite: its table retired lacks group 2: expected taken/0, as in the records",
        "ledger.sqlite: its table retired lacks group 3: expected dropped, as in the records",
    ]
