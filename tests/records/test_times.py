"""Lines of times.jsonl are read as they were written."""

from pathlib import Path

import pytest

from asyncrl.errors import LedgerError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.times import NodeTimes, TimesLine

LINE = TimesLine(3, 12.5, 2.0, {"rollout-0": NodeTimes("rollout", {"sampling": 1.5, "waiting for grading": 0.5}, 9)})


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.append_times(LINE)
    directory.append_times(LINE)
    assert directory.read_times() == [LINE, LINE]


def test_seconds_have_four_digits(tmp_path: Path) -> None:
    RunDirectory(tmp_path).append_times(TimesLine(0, 1 / 3, 1.0, {}))
    assert '"time_s":0.3333,' in (tmp_path / "times.jsonl").read_text()


def test_a_run_without_times_has_none(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).read_times() == []


def test_a_line_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "times.jsonl").write_text('{"step": "three"}\n')
    with pytest.raises(LedgerError, match=r"times.jsonl has a line that describes no stretch of a run"):
        RunDirectory(tmp_path).read_times()
