"""Commands that read a run say which run is missing."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from asyncrl.cli.main import main
from asyncrl.cli.recorded.commands import COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_run_that_does_not_exist_is_named(command: click.Command, tmp_path: Path) -> None:
    found = CliRunner().invoke(main, [command.name or "", str(tmp_path / "none")])
    assert found.exit_code == 78
    assert f"{tmp_path / 'none'}" in found.output
    assert len(found.output.splitlines()) == 1
