"""A worker as a process: the interpreter that runs it, and what an operator allows."""

import os
import sys
from pathlib import Path

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.worker_process import interpreter, named, require_allowed
from asyncrl.errors import ConfigError
from asyncrl.plug_in import ALLOW_VARIABLE


def test_the_interpreter_is_ours_unless_the_configuration_names_one() -> None:
    assert interpreter("") == [sys.executable]


def test_another_interpreter_is_not_led_to_our_packages() -> None:
    command = interpreter(sys.executable)

    assert command[1:-1] == ["-u", "PYTHONPATH", "-u", "PYTHONHOME"]
    assert Path(command[0]).name == "env"
    assert command[-1] == sys.executable


def test_an_interpreter_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.python is 'nowhere', but there is no such program"):
        interpreter("nowhere")


def test_an_environment_is_named_as_the_configuration_names_it() -> None:
    assert named(Environment(function="a.py:B")) == "environment.function 'a.py:B'"
    assert named(Environment(tools=["calculator"])) == "environment.tools ['calculator']"


@pytest.mark.parametrize(
    ("environment", "setting"),
    [
        (Environment(tools=["mcp:sh -c true"]), "environment.tools is 'sh'"),
        (Environment(tools=["calculator"], python="/usr/bin/env"), "environment.python is '/usr/bin/env'"),
    ],
)
def test_programs_are_run_only_from_where_the_operator_allows_code(
    environment: Environment, setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_allowed(environment)
    monkeypatch.setenv(ALLOW_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=f"{setting}, but this node may only run code from"):
        require_allowed(environment)
    monkeypatch.setenv(ALLOW_VARIABLE, f"{tmp_path}{os.pathsep}/")
    require_allowed(environment)
