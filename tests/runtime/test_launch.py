"""A resumed run tells from which step it goes on, and with which settings."""

import shlex
import shutil
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.config.config import Config
from asyncrl.config.run_file import to_toml, with_absolute_paths
from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.checks import devices_of, resolved
from asyncrl.runtime.launch import begun, continuation_lines, dashboard_beside, outcome_lines, time_so_far
from asyncrl.runtime.origin import settle
from tests.broker.driver import a_config
from tests.files.test_checkpoints import write_checkpoint
from tests.runtime.test_run import METRICS, SUMMARY


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def lines(directory: RunDirectory) -> list[str]:
    return list(continuation_lines(directory))


def test_a_new_run_is_not_resumed(directory: RunDirectory) -> None:
    assert lines(directory) == []


def test_steps_after_the_checkpoint_are_computed_again(directory: RunDirectory) -> None:
    for step in range(7):
        directory.append_metrics(METRICS | {"step": step})
    assert lines(directory) == [
        "resuming from the beginning, without a checkpoint; steps 1 to 7 are computed again, with the same batches"
    ]
    folder = write_checkpoint(directory.checkpoints, 5)
    assert lines(directory) == [
        f"resuming from checkpoint {folder}, if it is intact; steps 6 to 7 are computed again, with the same batches"
    ]
    write_checkpoint(directory.checkpoints, 6)
    assert lines(directory)[0].endswith("; step 7 is computed again, with the same batches")
    folder = write_checkpoint(directory.checkpoints, 7)
    assert lines(directory) == [f"resuming from checkpoint {folder}, if it is intact"]


def test_settings_that_were_changed_meanwhile_are_named(directory: RunDirectory) -> None:
    for value in (3, 2):
        directory.append_event("setting.changed", key="schedule.staleness", value=value, before=1, by="operator")
    assert lines(directory) == ["changed by `asyncrl set`: schedule.staleness = 2"]


def test_records_that_are_damaged_are_left_to_the_broker(directory: RunDirectory) -> None:
    directory.metrics.write_text("?\n")
    assert lines(directory) == []


def test_a_copy_says_that_it_is_one(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "a")
    with closing(Ledger(directory.ledger)) as ledger:
        settle(directory, ledger)
    shutil.copytree(directory.path, tmp_path / "b")
    assert lines(RunDirectory(tmp_path / "b")) == [
        f"{tmp_path}/b is a copy of the run in {tmp_path}/a: it goes on as a run of its own, with another identity and "
        f"secret; nodes and spools of the original are not taken"
    ]


# ── test outcome ──────────────────────────────────────────────────────────────────────────────
# The last lines of a run say what to look at.

ZERO = "every reward was 0: look at the samples: asyncrl samples "


def test_a_run_that_was_resumed_tells_both_times(directory: RunDirectory) -> None:
    assert next(outcome_lines(directory, SUMMARY, 0.0, can_resume=True)).startswith("finished: 3 of 3 steps in 6.0 s, ")
    first = next(outcome_lines(directory, SUMMARY, 2.5, can_resume=True))
    assert first.startswith("finished: 3 of 3 steps in 6.0 s (3.5 s since it was resumed), held-out accuracy 25.0%")


def test_completions_that_failed_are_told_beside_the_accuracy(directory: RunDirectory) -> None:
    first = next(outcome_lines(directory, replace(SUMMARY, held_out_failed=6), 0.0, can_resume=True))
    assert ", held-out accuracy 25.0% -> 75.0% (6 failed), mean staleness" in first


def test_prompts_that_failures_cost_are_told_below_the_failures(directory: RunDirectory) -> None:
    sentence = "KeyError at bad.py:4 in 1,889 of 3,495 verdicts (54 %)"
    summary = replace(SUMMARY, failures=[sentence], groups_issued=298, groups_failed=106)
    lines = list(outcome_lines(directory, summary, 0.0, can_resume=True))
    assert lines[1:3] == [
        f"failed      {sentence}",
        "dropped     106 of 298 prompts (35.6 %), because a completion of each failed for good: "
        f"asyncrl dead-letters {directory.path}",
    ]


def test_the_time_so_far_is_that_of_the_last_record(directory: RunDirectory) -> None:
    assert time_so_far(directory) == 0.0
    directory.append_metrics(METRICS)
    directory.append_event("run.finished", time_s=3.5)
    assert time_so_far(directory) == 3.5
    directory.metrics.write_text("?\n")
    assert time_so_far(directory) == 0.0


@pytest.mark.parametrize(
    ("rewards", "accuracy", "is_said"), [([0, 0], 0.0, True), ([0], None, True), ([0, 0.1], 0.0, False),
                                        ([0], 0.5, False), ([], None, False), ([None], None, False)]
)  # fmt: skip
def test_a_run_without_any_reward_points_at_its_samples(
    directory: RunDirectory, rewards: list[float | None], accuracy: float | None, is_said: bool
) -> None:
    for step, reward in enumerate(rewards):
        directory.append_metrics({**METRICS, "step": step, "reward": reward})  # type: ignore[dict-item]
    lines = list(outcome_lines(directory, replace(SUMMARY, held_out_accuracy=accuracy), 0.0, can_resume=True))
    assert (f"{ZERO}{directory.path}" in lines) is is_said


def test_samples_are_offered_once_a_step_has_some(directory: RunDirectory) -> None:
    offer = f"samples     asyncrl samples {directory.path}"
    assert offer not in outcome_lines(directory, SUMMARY, 0.0, can_resume=True)
    (directory.samples / "step_000000.parquet").touch()
    assert offer in outcome_lines(directory, SUMMARY, 0.0, can_resume=True)


# ── beside ────────────────────────────────────────────────────────────────────────────────────────


def test_the_dashboard_is_there_while_the_run_is(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    directory = RunDirectory.create(tmp_path, "a")
    said: list[str] = []
    with dashboard_beside(directory, said.append):
        url = said[0].removeprefix("dashboard ")
        with urllib.request.urlopen(f"{url}api/runs", timeout=10) as answer:
            assert b'"name":"a"' in answer.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=2)


def test_a_dashboard_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.create(tmp_path, "a")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "asyncrl: the port is taken" >&2\nexit 78\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ConfigError, match="the port is taken"), dashboard_beside(directory, print):
        pass


# ── going on with the newest run of a file ────────────────────────────────────────────────


@pytest.fixture
def started(tmp_path: Path) -> Config:
    here: dict[str, object] = {"device": "cpu"}
    config = a_config(run={"dir": str(tmp_path / "runs"), "steps": 9}, rollout=here, trainer=here)
    for name in ("mine", "mine", "mine", "other"):
        directory = RunDirectory.create(Path(config.run.dir), name)
        directory.write_config(to_toml(with_absolute_paths(resolved(config, devices_of(config)[1]), Path.cwd())))
    return config


def test_the_newest_run_of_a_name_goes_on(started: Config) -> None:
    runs = Path(started.run.dir)
    assert begun(started, "mine") == runs / "mine-3"
    assert begun(started, "other") == runs / "other"
    assert begun(started, "new") is None


def test_a_run_with_other_settings_does_not_go_on_with_these(started: Config) -> None:
    with pytest.raises(ConfigError, match=r"mine-3 was begun with run.steps = 9, and here it is 10; asyncrl resume"):
        begun(replace(started, run=replace(started.run, steps=10)), "mine")


def test_the_tenth_run_is_newer_than_the_ninth(tmp_path: Path) -> None:
    for _ in range(10):
        newest = RunDirectory.create(tmp_path, "mine")
    assert RunDirectory.newest(tmp_path, "mine") is not None
    assert str(RunDirectory.newest(tmp_path, "mine")) == str(newest)
    assert newest.path.name == "mine-10"


def test_commands_of_a_run_with_a_space_in_its_name_can_be_copied_into_a_shell(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "a run")
    summary = replace(SUMMARY, status="failed")
    commands = [line for line in outcome_lines(directory, summary, 0.0, can_resume=True) if "asyncrl " in line]
    assert len(commands) >= 2
    assert all(shlex.split(line.partition("asyncrl ")[2])[1] == str(directory.path) for line in commands)
