"""A run's files across a restart of its broker, with a fake clock."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.errors import RunFailed
from asyncrl.messages import Live, Stepped
from asyncrl.observe.run_directory import RunDirectory
from tests.broker.driver import a_config, a_scheduler


class Life:
    """One broker process, started at ``now_s`` of its own clock."""

    def __init__(self, directory: RunDirectory, now_s: float) -> None:
        config = a_config()
        self.directory = directory
        self.now_s = now_s
        self.report = RunFiles(config, a_scheduler(config), directory, lambda: self.now_s)

    def event(self, kind: str) -> dict[str, Any]:
        return [event for event in self.directory.read_events() if event["event"] == kind][-1]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def test_the_time_of_a_run_continues_after_a_restart(directory: RunDirectory) -> None:
    first = Life(directory, now_s=100.0)
    first.now_s += 7.0
    first.report.event("node.joined", node="a")
    assert first.event("node.joined")["time_s"] == 7.0

    second = Life(directory, now_s=5.0)
    second.now_s += 1.0
    second.report.event("node.left", node="a")
    assert second.event("node.left")["time_s"] == 8.0


def test_a_step_has_one_line_however_often_it_is_said(directory: RunDirectory) -> None:
    first = Life(directory, now_s=0.0)
    first.report.swapped(Live(-1, 0.25, 0.5))
    line = first.report.step(Stepped(0, 0, {"loss": 0.5}), [])
    assert line is not None
    assert (line["step"], line["loss"], line["pause_s"], line["receive_s"]) == (0, 0.5, 0.25, 0.5)
    assert first.report.step(Stepped(0, 0, {"loss": 0.5}), []) is None

    second = Life(directory, now_s=0.0)
    assert second.report.step(Stepped(0, 0, {"loss": 0.5}), []) is None
    assert second.report.step(Stepped(1, 1, {"loss": 0.4}), []) is not None
    assert [line["step"] for line in directory.read_metrics()] == [0, 1]
    assert second.event("step.repeated")["step"] == 0


def test_the_summary_is_written_once_and_covers_all_restarts(directory: RunDirectory) -> None:
    Life(directory, now_s=0.0).report.step(Stepped(0, 0, {}), [])
    life = Life(directory, now_s=0.0)
    life.report.step(Stepped(1, 1, {}), [])
    assert life.report.conclude("the trainer died") == "the trainer died"
    assert life.report.conclude("") == ""

    summary = directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.cause, summary.steps, summary.steps_planned) == ("failed", "the trainer died", 2, 4)
    assert (summary.base_accuracy, summary.held_out_accuracy) == (None, None)
    assert len([event for event in directory.read_events() if event["event"] == "run.finished"]) == 1


def test_a_disk_that_takes_no_summary_is_a_cause_if_there_was_none(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RunFailed("cannot write summary.json: No space left on device")

    monkeypatch.setattr(directory, "write_summary", full)
    assert Life(directory, now_s=0.0).report.conclude("") == "cannot write summary.json: No space left on device"
    assert Life(directory, now_s=0.0).report.conclude("the trainer died") == "the trainer died"
