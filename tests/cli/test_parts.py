"""A command that reads files says so to whoever gives it an address, and takes the newest run if no run is named."""

import os
from pathlib import Path

import click
import pytest

from asyncrl.cli.main import main
from asyncrl.cli.parts import ADDRESSED, newest_run
from tests.cli.invoke import asyncrl


def commands_with(metavar: str) -> list[str]:
    """Commands with this argument, optional or not."""
    return [
        name
        for name, command in main.commands.items()
        if any(isinstance(one, click.Argument) and unbracketed(one.metavar) == metavar for one in command.params)
    ]


def unbracketed(metavar: str | None) -> str:
    return (metavar or "").replace("[", "").replace("]", "")


@pytest.mark.parametrize("command", ["why", "logs", "audit", "events", "samples", "dead-letters", "resume", "report"])
def test_an_address_is_refused_as_it_was_given(command: str) -> None:
    result = asyncrl(command, "tcp://10.9.0.1:5570")
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


def test_the_run_that_began_last_is_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, began_s in (("a", 1), ("b", 3), ("c", 2)):
        config = tmp_path / "runs" / name / "config.toml"
        config.parent.mkdir(parents=True)
        config.touch()
        os.utime(config, (began_s, began_s))
    assert newest_run() == Path("runs/b")
    assert asyncrl("status").stdout.startswith("b: stopped")
    assert asyncrl("report").stdout == "runs/b/report.html\n"
    assert asyncrl("report", "runs/b", "runs/a").stdout == "runs/b/compared.html\n"


@pytest.mark.parametrize("command", ["status", "top", "why", "report", "samples"])
def test_without_any_run_one_has_to_be_named(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = asyncrl(command)
    assert result.exit_code == 2
    assert "there are no runs below runs/: give the directory of a run" in result.output
