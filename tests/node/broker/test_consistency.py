"""Inconsistent files of a run are refused before a broker resumes; a crash never makes them inconsistent."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from asyncrl.broker.ledger.records import Admitted, Record, Result, Rewarded, Taken
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.run_file import decode
from asyncrl.data.prompts import Draw
from asyncrl.errors import LedgerError
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
from asyncrl.node.broker.consistency import require_consistent_files
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.spool.segment_format import Entry, Place
from asyncrl.spool.segments import Segments

CONFIG = decode(
    {
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "schedule": {"groups_per_step": 1, "group_size": 2},
    }
)
UNITS = [Unit(0, 0), Unit(0, 1)]
SUMMARY = TrajectorySummary(
    num_tokens=3, prompt_tokens=2, oldest_version=0, newest_version=0, num_spans=1, finish_reason="stop"
)


class Prompts:
    """An endless stream of questions."""

    def at(self, group_id: int) -> Draw:
        return Draw(group_id, 0, group_id, Prompt(text="2 + 2?", answer="4"))


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def stored(directory: RunDirectory) -> tuple[Segments, list[Place]]:
    segments = Segments(directory.spool)
    places = segments.append([(Entry(unit, 1, SUMMARY, "r0", "b1"), memoryview(b"payload")) for unit in UNITS])
    segments.sync()
    return segments, places


def one_step(places: Sequence[Place]) -> list[Record]:
    """A ledger in which step 0 was given its batch."""
    results = [Result(unit, 1, SpoolRef("spool", *place), SUMMARY) for unit, place in zip(UNITS, places, strict=True)]
    admitted = Admitted(group_id=0, epoch=0, row=0, policy_version=0)
    return [admitted, *results, *(Rewarded(unit, 1.0) for unit in UNITS), Taken(0, [0])]


def ask(directory: RunDirectory, segments: Segments, records: Sequence[Record], broker_term: int = 2) -> None:
    scheduler = Scheduler(CONFIG, Prompts(), [], broker_term)  # type: ignore[arg-type]
    replay(scheduler, records)  # type: ignore[arg-type]
    try:
        require_consistent_files(directory, scheduler, segments, spool="spool", broker_term=broker_term)
    finally:
        segments.close()


def test_a_run_that_was_killed_may_go_on(directory: RunDirectory) -> None:
    """The newest step was trained, and is in the metrics and in a checkpoint."""
    segments, places = stored(directory)
    directory.append_metrics({"step": 0})
    (directory.checkpoints / "step_000001").mkdir()
    (directory.checkpoints / ".step_000002.partial").mkdir()

    ask(directory, segments, one_step(places))


def test_a_new_run_may_begin(directory: RunDirectory) -> None:
    ask(directory, Segments(directory.spool), [], broker_term=1)


def test_a_ledger_behind_its_checkpoints_is_refused(directory: RunDirectory) -> None:
    segments, places = stored(directory)
    (directory.checkpoints / "step_000002").mkdir()

    with pytest.raises(LedgerError, match=r"step_000002 contains 2 steps, but the ledger .*ledger.sqlite contains 1: "):
        ask(directory, segments, one_step(places))


def test_a_ledger_behind_its_metrics_is_refused(directory: RunDirectory) -> None:
    segments, _ = stored(directory)
    directory.append_metrics({"step": 0})

    with pytest.raises(LedgerError, match=r"metrics\.jsonl contains 1 steps, but the ledger .* contains 0: "):
        ask(directory, segments, [])


def test_a_spool_that_lost_a_payload_is_refused(directory: RunDirectory) -> None:
    segments, places = stored(directory)
    segments.close()
    path = directory.spool / "segment_000000.seg"
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(LedgerError, match=rf"lacks 1 payloads .* 7 bytes at offset {places[1].offset} of segment 0;"):
        ask(directory, Segments(directory.spool), one_step(places))


def test_payloads_of_another_ledger_are_refused(directory: RunDirectory) -> None:
    segments, _ = stored(directory)

    with pytest.raises(LedgerError, match=r"is new, but the spool .* holds 2 payloads"):
        ask(directory, segments, [], broker_term=1)
