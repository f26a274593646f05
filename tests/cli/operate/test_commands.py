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
