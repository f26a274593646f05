"""Rows of a samples file against the batch in the ledger."""

from collections.abc import Mapping

from msgspec.structs import replace

from asyncrl.broker.audit.sample_rules import sample_problems
from asyncrl.broker.audit.spool_rules import StoredFacts
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.records import Admitted, Result, Rewarded, Taken
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Span, TrajectorySummary, Unit
from asyncrl.observe.samples import SampleFacts

ROWS = [
    SampleFacts(step=0, group_id=0, index=index, reward=0.5, staleness=0, num_tokens=2, spans=[Span(0, 0, 2)])
    for index in range(2)
]


def problems(*rows: SampleFacts, stored: Mapping[Unit, StoredFacts] = {}) -> list[str]:
    book = RecordBook(Schedule(groups_per_step=1, group_size=2))
    book.add(Admitted(0, 0, 0, 0))
    for index in range(2):
        summary = TrajectorySummary(2, 1, 0, 0, 1, "stop")
        book.add(Result(Unit(0, index), 1, SpoolRef("s", 0, 0, 1, 0), summary))
        book.add(Rewarded(Unit(0, index), 0.5))
    book.add(Taken(0, [0]))
    return list(sample_problems(book, 0, rows, stored))


def test_rows_that_fit() -> None:
    assert problems(*ROWS) == []


def test_a_row_too_few_one_too_many_and_one_twice() -> None:
    assert problems(ROWS[0]) == ["unit 0/1 is missing, which step 0 was trained on"]
    assert problems(*ROWS, ROWS[1]) == ["unit 0/1 is there 2 times"]
    assert problems(*ROWS, replace(ROWS[0], group_id=7)) == ["unit 7/0 is not in the batch of step 0 in the ledger"]


def test_rows_that_differ_from_their_payload() -> None:
    stored = {Unit(0, 1): StoredFacts("ab", "four", "ann", "stop")}
    row = replace(ROWS[1], arrays="ab", completion="four", node="ann", finish_reason="stop")

    assert problems(ROWS[0], row, stored=stored) == []
    assert problems(ROWS[0], replace(row, arrays="cd"), stored=stored) == [
        "unit 0/1 has other token ids or log-probs than its payload in the spool, which the trainer read"
    ]
    assert problems(ROWS[0], replace(row, completion="x" * 50), stored=stored) == [
        f"unit 0/1 has the completion '{'x' * 40}...': expected 'four', as in its payload in the spool"
    ]


def test_numbers_that_differ_from_the_ledger() -> None:
    assert problems(ROWS[0], replace(ROWS[1], reward=1.0)) == [
        "unit 0/1 has the reward 1.0: expected 0.5, as in the ledger"
    ]
    assert problems(ROWS[0], replace(ROWS[1], staleness=-999_997)) == ["unit 0/1 has the staleness -999997: expected 0"]
    assert problems(ROWS[0], replace(ROWS[1], step=4)) == ["unit 0/1 says that it belongs to step 4"]
    assert problems(ROWS[0], replace(ROWS[1], num_turns=3, context_tokens=5)) == [
        "unit 0/1 has 3 turns and 5 tokens of context: expected 1 and 0, as in the ledger"
    ]
