"""Digests in the ledger, and of it, against what they are of."""

from asyncrl.broker.audit.step_rules import Line
from asyncrl.broker.audit.witness_rules import (
    chain_problems,
    file_problems,
    heads_of_events,
    line_problems,
    meta_problems,
    summary_file_problems,
    unwitnessed_steps,
)
from asyncrl.broker.ledger.chain import ChainCheck, Head
from asyncrl.broker.ledger.reader import LedgerMeta
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.records import AnyRecord, Started, Written
from asyncrl.config.sections.schedule import Schedule
from asyncrl.observe.run_directory import RunSummary

SUMMARY = RunSummary(
    name="run", status="finished", seed=0, steps=1, steps_planned=1, versions=1, wall_s=1.0, trained_tokens=8,
    staleness_mean=0.0, staleness_max=0, ledger_records=7,
)  # fmt: skip
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing."""


def book(*records: AnyRecord) -> RecordBook:
    made = RecordBook(Schedule())
    for record in records:
        made.add(record)
    return made


def test_a_digest_that_another_file_keeps_is_that_of_the_first_records() -> None:
    check = ChainCheck("run", wanted=[1, 2])
    for body in (b"a", b"b"):
        check.add(body, None)
    digests, heads = check.digests, {"a": Head(1, check.digests[1]), "b": Head(2, check.digests[2])}
    check.num_headless = 2

    assert list(chain_problems(check, heads)) == []
    assert list(chain_problems(check, {"an earlier asyncrl": Head(1, ""), "more than there are": Head(9, "ab")})) == []
    (problem,) = chain_problems(check, {"summary.json": Head(1, digests[2])})
    assert problem.startswith("ledger.sqlite: its first 1 records are not those of when summary.json was written")


def test_events_of_checkpoints_keep_digests() -> None:
    events: list[Line] = [
        {"event": "checkpoint.written", "step": 3, "ledger_records": 7, "ledger_head": "ab"},
        {"event": "checkpoint.written", "step": 1},
        {"event": "node.joined"},
    ]
    assert heads_of_events(events) == {"events.jsonl (checkpoint.written of step 3)": Head(7, "ab")}


def test_the_last_start_has_the_digest_of_the_facts_beside_the_records() -> None:
    meta = LedgerMeta("run", 2, "", "", digest="other")

    assert list(meta_problems(book(), meta, is_over=True)) == []
    assert list(meta_problems(book(Started(2, "other")), meta, is_over=True)) == []
    (problem,) = meta_problems(book(Started(2, "one")), meta, is_over=False)
    assert problem.startswith("ledger.sqlite: its meta is not that of start 2")
    starting = meta_problems(book(Started(1, "one")), meta, is_over=False)
    assert list(starting) == [], "a broker has opened it, and not recorded its start yet"


def test_a_line_is_the_one_that_was_written_whatever_was_not_finite_in_it() -> None:
    line = {"step": 3, "loss": None, "reward": 0.5}
    digest = "66e88ec07c7e5a63df66cb3a2f6b8f2b1ba2f9b0ca8a0dd1fbb3bb4f6e36a8a1"

    assert list(line_problems(book(), [line])) == []
    assert unwitnessed_steps(book(Written("metrics.jsonl", digest, 4)), [line]) == [3]
    (problem,) = line_problems(book(Written("metrics.jsonl", digest, 3)), [line])
    assert problem.startswith(
        "metrics.jsonl: the line of step 3 is not what was written: expected the digest 66e88ec07"
    )


def test_the_summary_counts_until_the_next_start() -> None:
    written = Written("summary.json", "ab")

    assert list(summary_file_problems(book(Written("summary.json", EMPTY)), SUMMARY, b"")) == []
    assert len(list(summary_file_problems(book(written), SUMMARY, b""))) == 1
    assert list(summary_file_problems(book(written, Started(2, "")), SUMMARY, b"")) == []


def test_a_file_may_have_been_replaced_while_the_ledger_was_read() -> None:
    recorded = book(Written("a", "old"), Written("a", "new"))

    assert list(file_problems(recorded, "b", ["x"])) == [], "the ledger has no digest of it"
    assert list(file_problems(recorded, "a", ["old", "new"])) == []
    assert list(file_problems(recorded, "a", ["old", "old"])) == [
        "a: it is not what was written: expected the digest new, as in the ledger, got old"
    ]
