import os
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.lock import locked
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.run_overview import (
    find_runs,
    is_served,
    is_starting,
    is_supervised,
    overview,
    require_run,
)

MakeRun = Callable[..., RunDirectory]


def test_a_mistyped_run_is_answered_with_the_one_beside_it(make_run: MakeRun) -> None:
    directory = make_run()
    assert require_run(directory.path).path == directory.path
    with pytest.raises(ConfigError, match=rf"is not a run directory.*; did you mean {directory.path}\?$"):
        require_run(directory.path.with_name("tinny"))


def test_a_finished_run_is_told_by_its_summary(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary(held_out_failed=3))
    found = overview(directory.path)
    assert (found.run, found.status, found.step, found.steps, found.reward) == ("tiny", "finished", 10, 10, 0.9)
    assert (found.base_accuracy, found.accuracy) == (summary().base_accuracy, summary().held_out_accuracy)
    assert (found.accuracy_failed, found.wall_s) == (3, summary().wall_s)


def test_a_run_without_an_end_and_without_a_broker_has_stopped(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("eval.finished", policy_version=10, accuracy=0.75, num_prompts=60, failed=4.0)
    found = overview(directory.path, wall_clock=lambda: 1_700_000_060.0)
    assert found.accuracy_failed == 4
    assert (found.status, found.step, found.steps) == ("stopped", 10, 10)
    assert (found.base_accuracy, found.accuracy, found.age_s, found.wall_s) == (0.25, 0.75, 60.0, None)
    assert found.num_bytes > 0


def test_a_run_whose_lock_is_held_runs(make_run: MakeRun) -> None:
    directory = make_run()
    assert not is_served(directory)
    with locked(directory.lock, "held"):
        assert overview(directory.path).status == "running"
    with locked(directory.supervisor_lock, "held"):
        assert is_supervised(directory)
        assert overview(directory.path).status == "stopped"


def test_a_broker_is_starting_until_it_writes_its_address_anew(make_run: MakeRun) -> None:
    directory = make_run()
    directory.address.write_text("ipc:///tmp/broker\n")
    os.utime(directory.address, (1.0, 1.0))
    assert not is_starting(directory)
    with locked(directory.lock, "held"):
        assert is_starting(directory)
        directory.address.write_text("ipc:///tmp/broker\n")
        assert not is_starting(directory)


def test_a_checkpoint_counts_once_its_manifest_is_written(make_run: MakeRun) -> None:
    directory = make_run()
    for step, is_complete in (("000002", True), ("000004", True), ("000006", False)):
        (directory.checkpoints / f"step_{step}").mkdir()
        if is_complete:
            (directory.checkpoints / f"step_{step}" / "manifest.json").touch()
    assert overview(directory.path).checkpoint == str(directory.checkpoints / "step_000004")


def test_damaged_files_are_noted_and_the_others_are_read(make_run: MakeRun) -> None:
    directory = make_run()
    directory.config.write_text("[run")
    directory.metrics.write_text("no json\n")
    found = overview(directory.path)
    assert (found.steps, found.reward, found.accuracy) == (None, None, 0.75)
    assert [note.split()[0].rpartition("/")[2] for note in found.notes] == ["metrics.jsonl", "config.toml"]


def test_only_folders_with_a_configuration_are_runs(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(name).path for name in ("b", "a")]
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "file").touch()
    assert find_runs(tmp_path / "runs") == sorted(runs)
    assert find_runs(tmp_path / "nowhere") == []
