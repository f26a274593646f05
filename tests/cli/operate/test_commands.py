"""The commands as they are typed: options, output, exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from asyncrl.cli.main import main
from asyncrl.observe.run_directory import RunDirectory


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run of four steps that was killed."""
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.config.write_text('[run]\nsteps = 4\n[model]\npath = "m"\n[data]\ntrain = "t"\n')
    return directory


def test_the_state_of_a_killed_run_is_printed_with_a_code_that_says_it_is_unknown(directory: RunDirectory) -> None:
    result = asyncrl("status", directory.path)
    assert result.exit_code == 69
    assert result.stdout.startswith("tiny: stopped, step 0 of 4")
    assert "its broker does not run" in result.stderr
    assert json.loads(asyncrl("status", directory.path, "--json").stdout)["files"]["steps"] == 4


def test_the_runs_of_a_folder_are_listed(directory: RunDirectory, tmp_path: Path) -> None:
    assert "tiny  stopped   0/4" in asyncrl("ls", tmp_path).stdout
    assert json.loads(asyncrl("ls", tmp_path, "--json").stdout)[0]["run"] == "tiny"
    assert asyncrl("ls", directory.path).stdout == f"there are no runs in {directory.path}\n"


def test_a_run_that_is_over_is_shown_once_by_top_and_left_alone_by_stop(directory: RunDirectory) -> None:
    assert asyncrl("top", directory.path).stdout.startswith("tiny: stopped, step 0 of 4")
    assert asyncrl("stop", directory.path).stdout.startswith("tiny is over: stopped after 0 of 4 steps")


def test_the_last_lines_of_a_log_are_printed_and_following_a_run_that_is_over_ends(directory: RunDirectory) -> None:
    (directory.logs / "trainer-0.log").write_text("one\ntwo\nthree\n")
    assert asyncrl("logs", directory.path, "-n", 1).stdout == "trainer-0  three\n"
    assert asyncrl("logs", directory.path, "trainer-0", "-f").stdout == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    "command", ["status", "top", "stop", "logs", "pause", "resume-sampling", "set a.b=1", "stacks x"]
)
def test_a_wrong_name_is_one_sentence_that_says_where_runs_are_listed(command: str, tmp_path: Path) -> None:
    result = asyncrl(*command.split()[:1], tmp_path / "nowhere", *command.split()[1:])
    assert result.exit_code == 78
    assert "`asyncrl ls` lists the runs below runs/" in result.stderr
    assert len(result.stderr.splitlines()) == 1
