"""Held-out results against the ledger."""

from msgspec.structs import replace

from asyncrl.broker.audit.held_out_rules import held_out_event_problems, held_out_summary_problems
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.records import Measured
from asyncrl.config.sections.schedule import Schedule
from tests.broker.audit.test_witness_rules import SUMMARY


def book(*measured: Measured) -> RecordBook:
    made = RecordBook(Schedule())
    for record in measured:
        made.add(record)
    return made


MEASURED = book(Measured(0, 0.25, 8), Measured(1, 0.5, 8, {"avg@2": 0.4}), Measured(2, float("nan"), 0))


def test_accuracies_of_the_summary_are_the_first_and_the_last_that_were_measured() -> None:
    summary = replace(SUMMARY, base_accuracy=0.25, held_out_accuracy=0.5)

    assert list(held_out_summary_problems(MEASURED, summary)) == []
    assert list(held_out_summary_problems(MEASURED, replace(summary, held_out_accuracy=0.9))) == [
        "summary.json: held_out_accuracy is 0.9: expected 0.5, as in the ledger"
    ]
    assert list(held_out_summary_problems(book(), replace(summary, held_out_accuracy=None))) == [
        "summary.json: base_accuracy is 0.25: expected None, as in the ledger"
    ]
    failed = replace(summary, status="failed", held_out_accuracy=0.9)
    assert list(held_out_summary_problems(MEASURED, failed)) == [], "the ledger could not be written"


def test_the_last_event_of_a_version_has_what_the_ledger_has() -> None:
    event = {"event": "eval.finished", "policy_version": 1, "accuracy": 0.5, "num_prompts": 8, "avg@2": 0.4}

    assert list(held_out_event_problems(MEASURED, [event | {"accuracy": 0.1}, event])) == [], "measured again"
    assert list(held_out_event_problems(MEASURED, [event | {"policy_version": 7}])) == [], "its broker died before"
    assert list(held_out_event_problems(MEASURED, [event | {"avg@2": 0.6}])) == [
        "events.jsonl: eval.finished of version 1 has avg@2 0.6: expected 0.4, as in the ledger"
    ]
