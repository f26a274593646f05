"""A command that reads files says so to whoever gives it an address."""

import click
import pytest
from click.testing import CliRunner

from asyncrl.cli.main import main
from asyncrl.cli.run_path import ADDRESSED


def commands_with(metavar: str) -> list[str]:
    return [
        name
        for name, command in main.commands.items()
        if any(isinstance(one, click.Argument) and one.metavar == metavar for one in command.params)
    ]


@pytest.mark.parametrize("command", ["why", "logs", "audit", "events", "samples", "dead-letters", "resume", "report"])
def test_an_address_is_refused_as_it_was_given(command: str) -> None:
    result = CliRunner().invoke(main, [command, "tcp://10.9.0.1:5570"])
    said = " ".join(result.output.split())
    assert result.exit_code == 2
    assert "tcp://10.9.0.1:5570 is an address, but this command reads files: give the run directory" in said


def test_the_commands_that_take_an_address_are_named() -> None:
    assert sorted(ADDRESSED) == sorted(commands_with("RUN|ADDRESS"))


def test_every_other_command_refuses_one() -> None:
    readers = commands_with("RUN") + commands_with("RUN...")
    assert {"export", "track", "dashboard"} <= set(readers)
    for name in readers:
        (run, *_) = [one for one in main.commands[name].params if isinstance(one, click.Argument)]
        with pytest.raises(click.BadParameter, match="is an address"):
            run.type.convert("tcp://10.9.0.1:5570", run, None)
