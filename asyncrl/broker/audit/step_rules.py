"""
Metrics, events and summary of a run against its ledger.

A line of metrics.jsonl and the summary name the number of records that the ledger had on disk when they were written.
A ledger with fewer has lost its end: SQLite opens it without complaint if its write-ahead log was deleted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.broker.ledger.audit import LEDGER
from asyncrl.broker.ledger.chain import Head
from asyncrl.broker.ledger.record_book import METRICS, SUMMARY, RecordBook
from asyncrl.observe.run_directory import RunSummary

Line = Mapping[str, Any]
STARTS = ("run.started", "run.resumed")
"""Events of a broker's start, one for each broker term."""
ROUNDING = 1e-9
"""Relative difference of two means that are equal but for the order of their sums."""


def metrics_problems(book: RecordBook, lines: Sequence[Line]) -> Iterator[str]:
    """Sentences about lines that the ledger does not bear out."""
    for line in lines:
        step = int(line["step"])
        if step not in book.steps:
            yield f"{METRICS}: step {step} was recorded, but the ledger has no batch of it; its last is {_last(book)}"
            continue
        expected = _expected(book, step)
        for key, value in expected.items():
            if (got := line.get(key)) is not None and not math.isclose(got, value, rel_tol=ROUNDING, abs_tol=ROUNDING):
                yield f"{METRICS}: step {step} has {key} {got:g}: expected {value:g}, as in the ledger"


def unrecorded_problems(book: RecordBook, lines: Sequence[Line]) -> Iterator[str]:
    """Sentences about steps that a checkpoint contains according to the ledger, and that have no line."""
    recorded = {int(line["step"]) for line in lines}
    for step in range(book.committed_step + 1):
        if step not in recorded and step in book.steps:
            yield f"{METRICS}: step {step} is missing, though the ledger says that a checkpoint contains it"


def lost_records(
    book: RecordBook, broker_term: int, lines: Sequence[Line], events: Sequence[Line], heads: Mapping[str, Head]
) -> Iterator[str]:
    """Sentences about records that others saw, and that the ledger does not have."""
    seen = {METRICS: max((int(line.get("ledger_records") or 0) for line in lines), default=0)}
    seen |= {file: head.num_records for file, head in heads.items()}
    for file, number in seen.items():
        if number > book.num_records:
            yield (
                f"{LEDGER}: its end is missing, as after the loss of its write-ahead log {LEDGER}-wal: it had {number} "
                f"records when {file} was written, and has {book.num_records} now"
            )
    starts = sum(event.get("event") in STARTS for event in events)
    if starts > broker_term:
        yield (
            f"{LEDGER}: its write-ahead log {LEDGER}-wal was lost: events.jsonl has {starts} starts of the broker, the "
            f"ledger {broker_term}"
        )


def summary_problems(book: RecordBook, lines: Sequence[Line], summary: RunSummary) -> Iterator[str]:
    """Sentences about a summary that ledger and metrics do not bear out."""
    steps = [int(line["step"]) for line in lines]
    if summary.status != "finished":  # Steps that were under way are recorded after the summary of a failed run.
        if summary.steps > len(steps):
            yield f"{SUMMARY}: steps is {summary.steps}: expected at most {len(steps)}, as in {METRICS}"
        return
    trained = [item for step in steps for item in book.sampled(step)]
    staleness = [book.versions.of_step(item.step) - item.result.summary.oldest_version for item in trained]
    expected: dict[str, float] = {
        "steps": len(steps),
        "trained_tokens": sum(item.result.summary.num_tokens for item in trained),
        "staleness_max": max(staleness, default=0),
        "steps_planned": book.next_step,
        "versions": max(book.versions.live_version, 0),
    }
    for key, value in expected.items():
        if not math.isclose(got := getattr(summary, key), value, rel_tol=ROUNDING, abs_tol=ROUNDING):
            yield f"{SUMMARY}: {key} is {got:g}: expected {value:g}, as in ledger and metrics"
    if book.committed_step + 1 < book.next_step:
        yield (
            f"{SUMMARY}: the run is finished, but the ledger has {book.committed_step + 1} of {book.next_step} steps "
            f"in a checkpoint"
        )


def _expected(book: RecordBook, step: int) -> dict[str, float]:
    """Numbers of a step's line, computed from the ledger."""
    trained, version = book.sampled(step), book.versions.of_step(step)
    count = max(len(trained), 1)
    lengths = [item.result.summary.num_tokens for item in trained]
    staleness = [version - item.result.summary.oldest_version for item in trained]
    verdicts = [item.rewarded for item in trained if item.rewarded]
    summaries = [item.result.summary for item in trained]
    return {
        "version": version,
        "tokens": sum(lengths),
        "num_tokens": sum(lengths),
        "num_trajectories": len(trained),
        "length_max": max(lengths, default=0),
        "staleness_max": max(staleness, default=0),
        "staleness_mean": sum(staleness) / count,
        "reward": sum(verdict.reward for verdict in verdicts) / count,
        "accuracy": sum(verdict.metrics.get("correct", verdict.reward) for verdict in verdicts) / count,
        "length_mean": sum(lengths) / count,
        "truncated": sum(summary.finish_reason == "length" for summary in summaries) / count,
        "spans_mean": sum(summary.num_spans for summary in summaries) / count,
    }


def _last(book: RecordBook) -> str:
    return f"that of step {book.next_step - 1}" if book.steps else "none"
