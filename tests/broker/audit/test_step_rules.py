"""Metrics, events and summary against the ledger."""

from typing import Any

from msgspec.structs import replace

from asyncrl.broker.audit.run_rules import lost_records, metrics_problems, summary_problems, unrecorded_problems
from asyncrl.broker.ledger.reader import Head
from asyncrl.broker.ledger.records import Admitted, AnyRecord, Committed, Result, Rewarded, Taken, VersionLive
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.records.run_directory import RunSummary

LINE: dict[str, Any] = {
    "step": 0, "version": 0, "tokens": 8.0, "num_tokens": 8.0, "num_trajectories": 1.0, "length_max": 8.0,
    "staleness_max": 0.0, "staleness_mean": 0.0, "reward": 0.25, "ledger_records": 5.0,
}  # fmt: skip
RECORDS: list[AnyRecord] = [
    VersionLive(0, 0),
    Admitted(0, 0, 0, 0),
    Result(Unit(0, 0), 1, SpoolRef("s", 0, 0, 1, 0), TrajectorySummary(8, 1, 0, 0, 1, "stop")),
    Rewarded(Unit(0, 0), 0.25),
    Taken(0, [0]),
    VersionLive(1, 1),
    Committed(0, "step_000001"),
]
SUMMARY = RunSummary(
    name="run", status="finished", seed=0, steps=1, steps_planned=1, versions=1, wall_s=1.0, trained_tokens=8,
    staleness_mean=0.0, staleness_max=0, ledger_records=7,
)  # fmt: skip

HEADS = {"summary.json": Head(7, "ab")}


def book(num_records: int = len(RECORDS)) -> LedgerState:
    made = LedgerState(Schedule(groups_per_step=1, group_size=1))
    for record in RECORDS[:num_records]:
        made.add(record)
    return made


def test_lines_and_summary_that_fit() -> None:
    assert list(metrics_problems(book(), [LINE])) == []
    assert list(unrecorded_problems(book(), [LINE])) == []
    assert list(summary_problems(book(), [LINE], SUMMARY)) == []
    assert list(lost_records(book(), 1, [LINE], [{"event": "run.started"}], HEADS)) == []


def test_lines_of_an_own_training_loop_may_lack_numbers() -> None:
    assert list(metrics_problems(book(), [{"step": 0, "version": 0}])) == []


def test_a_number_that_is_null_was_not_finite_and_is_not_compared() -> None:
    assert list(metrics_problems(book(), [LINE | {"reward": None}])) == []


def test_a_line_without_a_batch_and_a_line_with_other_numbers() -> None:
    assert list(metrics_problems(book(), [LINE | {"step": 3}])) == [
        "metrics.jsonl: step 4 was recorded, but the ledger has no batch of it; its last is that of step 1"
    ]
    assert list(metrics_problems(book(), [LINE | {"staleness_max": -999_997.0}])) == [
        "metrics.jsonl: step 1 has staleness_max -999997: expected 0, as in the ledger"
    ]


def test_a_committed_step_without_a_line() -> None:
    assert list(unrecorded_problems(book(), [])) == [
        "metrics.jsonl: step 1 is missing, though the ledger says that a checkpoint contains it"
    ]


def test_a_ledger_with_fewer_records_than_others_saw_has_lost_its_end() -> None:
    assert list(lost_records(book(3), 1, [LINE], [], HEADS)) == [
        "ledger.sqlite: its end is missing, as after the loss of its write-ahead log ledger.sqlite-wal: it had 5 "
        "records when metrics.jsonl was written, and has 3 now",
        "ledger.sqlite: its end is missing, as after the loss of its write-ahead log ledger.sqlite-wal: it had 7 "
        "records when summary.json was written, and has 3 now",
    ]


def test_a_ledger_with_fewer_terms_than_starts_has_lost_its_log() -> None:
    events = [{"event": "run.started"}, {"event": "node.joined"}, {"event": "run.resumed"}]
    (problem,) = lost_records(book(), 1, [], events, {})
    assert problem.endswith("events.jsonl has 2 starts of the broker, the ledger 1")


def test_steps_under_way_are_recorded_after_the_summary_of_a_failed_run() -> None:
    failed = replace(SUMMARY, status="failed", steps=0, trained_tokens=0, versions=0)
    assert list(summary_problems(book(), [LINE], failed)) == []
    assert list(summary_problems(book(), [], replace(failed, steps=1))) == [
        "summary.json: steps is 1: expected at most 0, as in metrics.jsonl"
    ]


def test_a_finished_run_is_in_a_checkpoint() -> None:
    assert list(summary_problems(book(6), [LINE], SUMMARY)) == [
        "summary.json: the run is finished, but the ledger has 0 of 1 steps in a checkpoint"
    ]
