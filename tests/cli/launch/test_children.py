"""Environment and options of child processes, and restarts of trackers."""

import asyncio
import sys
from pathlib import Path

import pytest

from asyncrl.actor.supervise import Child, Exit
from asyncrl.cli.launch.children import keep_tracking, role_process, tracker_process
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError, TrackerError
from asyncrl.messages.words import Role
from asyncrl.observe.run_directory import RunDirectory

CONFIG = Config(model=Model(path="m"), data=Data(train="t"), rollout=Rollout(threads=3), trainer=Trainer(threads=2))
TRACKED = decode({"model": {"path": "m"}, "data": {"train": "rows"}, "supervisor": {"max_restarts": 1}})


@pytest.mark.parametrize(("role", "threads"), [("rollout", "3"), ("trainer", "2"), ("reward", "1"), ("broker", "1")])
def test_threads_devices_and_options_reach_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: Role, threads: str
) -> None:
    shell = tmp_path / "python"
    shell.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $CUDA_VISIBLE_DEVICES $@"\n')
    shell.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shell))
    child = role_process(
        role, "gpu-1", CONFIG, tmp_path / "log", "--broker", "tcp://x", environment={"CUDA_VISIBLE_DEVICES": "4,5"}
    )

    async def scene() -> int:
        await child.start()
        return await child.wait()

    assert asyncio.run(scene()) == 0
    assert child.last_line() == f"{threads} 4,5 -m asyncrl.cli.node --role {role} --name gpu-1 --broker tcp://x"


def exits(tmp_path: Path, code: str, *, is_over: bool = False) -> list[Exit]:
    """Reported exits of a tracker process that runs ``code``, until it is not restarted."""
    reported: list[Exit] = []

    async def exited(left: Exit) -> None:
        reported.append(left)

    child = Child("tracker-toy", [sys.executable, "-c", code], tmp_path / "toy.log", {})
    asyncio.run(keep_tracking(child, TRACKED, exited=exited, is_over=lambda: is_over))
    return reported


def test_a_tracker_process_is_named_after_its_tracker() -> None:
    assert tracker_process("my.py:slack", RunDirectory(Path("runs/tiny"))).name == "tracker-slack"


def test_a_tracker_that_dies_is_restarted_within_the_budget(tmp_path: Path) -> None:
    code = f"import sys; sys.stderr.write('asyncrl: toy.log: OSError: no network'); sys.exit({TrackerError.exit_code})"
    reported = exits(tmp_path, code)
    assert [left.restarting for left in reported] == [True, False]
    assert reported[0].cause == "exited with 70: toy.log: OSError: no network"


def test_a_tracker_with_a_configuration_error_is_not_restarted(tmp_path: Path) -> None:
    (left,) = exits(tmp_path, f"import sys; sys.exit({ConfigError.exit_code})")
    assert not left.restarting


@pytest.mark.parametrize("code", [0, 1])
def test_once_the_run_is_over_no_exit_is_reported(tmp_path: Path, code: int) -> None:
    assert exits(tmp_path, f"import sys; sys.exit({code})", is_over=True) == []


def test_a_finished_tracker_is_not_reported(tmp_path: Path) -> None:
    assert exits(tmp_path, "") == []


def test_a_tracker_that_cannot_be_started_is_reported_without_an_error(tmp_path: Path) -> None:
    (left,) = exits(tmp_path / "no such folder", "")
    assert not left.restarting
    assert "toy.log" in left.cause
