import os
from pathlib import Path

import pytest

from asyncrl.cli.operate.run_list import age, list_runs, run_table
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_overview import RunOverview


def test_runs_are_listed_in_the_order_of_their_beginning(tmp_path: Path) -> None:
    for name, at in (("late", 2_000.0), ("early", 1_000.0)):
        directory = RunDirectory.create(tmp_path, name)
        directory.config.write_text("[run]\nsteps = 4\n")
        RunDirectory(directory.path, wall_clock=lambda at=at: at).append_event("run.started")  # type: ignore[misc]
    assert [run.run for run in list_runs(tmp_path)] == ["early", "late"]


def test_a_run_that_never_started_has_the_age_of_its_configuration(tmp_path: Path) -> None:
    old = RunDirectory.create(tmp_path, "old")
    old.config.write_text("[run]\nsteps = 4\n")
    RunDirectory(old.path, wall_clock=lambda: 1_000.0).append_event("run.started")
    new = RunDirectory.create(tmp_path, "new")
    new.config.write_text("[run]\nsteps = 4\n")
    os.utime(new.config, (2_000.0, 2_000.0))
    assert [(run.run, run.began_at) for run in list_runs(tmp_path)] == [
        ("old", "1970-01-01T00:16:40.000Z"),
        ("new", "1970-01-01T00:33:20.000Z"),
    ]


def test_a_run_is_one_line_with_what_is_known() -> None:
    known = RunOverview(
        run="a", status="running", step=3, steps=40, reward=0.5, base_accuracy=None, accuracy=0.985, age_s=90.0,
        num_bytes=7_700_000,
    )  # fmt: skip
    unknown = RunOverview(
        run="broken", status="stopped", step=0, steps=None, reward=None, base_accuracy=None, accuracy=None
    )
    assert run_table([known, unknown]) == [
        "run     status   step  reward  held out         age    disk",
        "a       running  3/40   0.500     98.5%  1 min 30 s  7.70MB",
        "broken  stopped   0/?                                    0B",
    ]


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        list_runs(tmp_path / "nowhere")


def test_an_age_of_days_is_told_in_days() -> None:
    assert (age(7_200.0), age(300_000.0)) == ("2 h 0 min", "3 days")
