"""The process that fits a plan for the broker: its answer, and every way in which it fails."""

import asyncio
import sys
from pathlib import Path

import pytest

from asyncrl.broker.staleness_control import StalenessChoice
from asyncrl.cli.launch import staleness_process
from asyncrl.cli.launch.staleness_process import choose_staleness
from asyncrl.errors import AsyncrlError
from tests.plan.test_auto import a_run


def choose(path: Path) -> StalenessChoice:
    return asyncio.run(choose_staleness(path))


def test_it_answers_for_a_run(tmp_path: Path) -> None:
    choice = choose(a_run(tmp_path, steps=20))
    assert (choice.before, choice.staleness) == (1.0, 1.0)


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AsyncrlError, match=r"no plan for the staleness was fitted \(exit code 78\): .*no such run"):
        choose(tmp_path / "none")


def test_one_that_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness_process, "DEADLINE_S", 0.01)
    with pytest.raises(AsyncrlError, match=r"no plan for the staleness was fitted within 0\.01 s"):
        choose(tmp_path)


def test_a_program_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AsyncrlError, match=r"was not started: .*No such file"):
        choose(tmp_path)


def test_an_answer_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "true")
    with pytest.raises(AsyncrlError, match="gave no choice"):
        choose(tmp_path)
