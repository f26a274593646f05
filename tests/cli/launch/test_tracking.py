import asyncio
import sys
from pathlib import Path

import pytest

from asyncrl.actor.supervise import Child, Exit
from asyncrl.cli.launch.tracking import keep_tracking, tracker_process
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError, TrackerError
from asyncrl.observe.run_directory import RunDirectory

CONFIG = decode({"model": {"path": "m"}, "data": {"train": "rows"}, "supervisor": {"max_restarts": 1}})


def lives(tmp_path, code: str, *, is_over: bool = False) -> list[Exit]:
    """What is told of a child that runs ``code``, until it stays away."""
    told: list[Exit] = []

    async def exited(left: Exit) -> None:
        told.append(left)

    child = Child("tracker-toy", [sys.executable, "-c", code], tmp_path / "toy.log", {})
    asyncio.run(keep_tracking(child, CONFIG, exited=exited, is_over=lambda: is_over))
    return told


def test_it_is_called_after_its_tracker() -> None:
    assert tracker_process("my.py:slack", RunDirectory(Path("runs/tiny"))).name == "tracker-slack"


def test_one_that_dies_is_started_again_within_the_budget(tmp_path) -> None:
    code = f"import sys; sys.stderr.write('asyncrl: toy.log: OSError: no network'); sys.exit({TrackerError.exit_code})"
    told = lives(tmp_path, code)
    assert [left.restarting for left in told] == [True, False]
    assert told[0].cause == "exited with 70: toy.log: OSError: no network"


def test_one_that_would_only_end_the_same_way_is_not(tmp_path) -> None:
    (left,) = lives(tmp_path, f"import sys; sys.exit({ConfigError.exit_code})")
    assert not left.restarting


@pytest.mark.parametrize("code", [0, 1])
def test_once_the_run_is_over_it_may_leave_as_it_likes(tmp_path, code) -> None:
    assert lives(tmp_path, f"import sys; sys.exit({code})", is_over=True) == []


def test_one_that_has_finished_is_done(tmp_path) -> None:
    assert lives(tmp_path, "") == []


def test_one_that_cannot_be_started_is_told_of_and_no_more(tmp_path) -> None:
    (left,) = lives(tmp_path / "no such folder", "")
    assert not left.restarting
    assert "toy.log" in left.cause
