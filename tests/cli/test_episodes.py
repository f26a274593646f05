"""Output and exit codes of `asyncrl episode`."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from asyncrl.cli.main import main
from tests.records.test_sampled_episodes import episode
from tests.records.test_samples import written


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["episode", *map(str, arguments)])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    written(tmp_path / "samples", 3, [episode(1)])
    written(tmp_path / "samples", 4, [episode(7), episode(7, 1), episode(8)])
    (tmp_path / "config.toml").touch()
    return tmp_path


def test_an_episode_of_the_last_step_is_shown(run: Path) -> None:
    shown = asyncrl("show", run)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0] == "step 42, trajectory 7/0"
    assert "prompt       2 + 3 = ?" in lines
    assert "environment  left 2" in lines
    assert lines[-1] == "reward of the run 1"
    assert shown.output.count("trajectory") == 1


def test_others_are_chosen_by_step_group_and_index(run: Path) -> None:
    assert "trajectory 1/0" in asyncrl("show", run, "--step", 4).output
    assert "trajectory 7/1" in asyncrl("show", run, "--group", 7, "--index", 1).output
    assert asyncrl("show", run, "--count", 2).output.count("trajectory") == 2


def test_what_is_not_there_is_named(run: Path, tmp_path: Path) -> None:
    none = asyncrl("show", run, "--group", 99)
    assert (none.exit_code, "has no such episode" in none.output) == (78, True)
    assert "is not a run directory" in asyncrl("show", tmp_path / "other").output
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").touch()
    assert "there are no samples in" in asyncrl("show", tmp_path / "other").output
    assert "cannot be read" in asyncrl("show", run, "--step", 9).output


def test_an_answer_belongs_to_a_prompt() -> None:
    refused = asyncrl("try", "boxes.py:Boxes", "--model", "m", "--answer", "4")
    assert (refused.exit_code, "--answer needs --prompt" in refused.output) == (2, True)
