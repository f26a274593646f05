"""Held-out results in the summary and in the events against those in the ledger."""

from collections.abc import Iterator, Sequence

from asyncrl.broker.audit.step_rules import Line
from asyncrl.broker.ledger.record_book import SUMMARY, RecordBook
from asyncrl.broker.ledger.records import Measured
from asyncrl.observe.run_directory import RunSummary

OF_SUMMARY = ("finished", "interrupted")
"""Summaries that are written once everything is recorded."""


def held_out_summary_problems(book: RecordBook, summary: RunSummary) -> Iterator[str]:
    """Sentences about accuracies in the summary that were not measured."""
    if summary.status not in OF_SUMMARY:
        return
    measured = [record for record in book.measured if record.num_prompts]
    base = next((record.accuracy for record in measured if record.policy_version == 0), None)
    last = measured[-1].accuracy if measured else None
    for key, expected in {"base_accuracy": base, "held_out_accuracy": last}.items():
        if (got := getattr(summary, key)) != expected:
            yield f"{SUMMARY}: {key} is {got}: expected {expected}, as in the ledger"


def held_out_event_problems(book: RecordBook, events: Sequence[Line]) -> Iterator[str]:
    """Sentences about results that differ from those in the ledger, which may lack the last: its broker died before."""
    recorded: dict[int, Measured] = {record.policy_version: record for record in book.measured}
    told = {event.get("policy_version"): event for event in events if event.get("event") == "eval.finished"}
    for version, record in recorded.items():
        if (event := told.get(version)) is None:
            continue
        expected = {"accuracy": record.accuracy, "num_prompts": record.num_prompts, **record.metrics}
        for key, value in expected.items():
            if (got := event.get(key)) is not None and got != value:
                event_name = f"eval.finished of version {version}"
                yield f"events.jsonl: {event_name} has {key} {got}: expected {value}, as in the ledger"
