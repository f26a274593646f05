"""The environment of a run is loaded before anything starts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.launch.checks import environment as module
from asyncrl.cli.launch.checks.environment import check_environment
from asyncrl.errors import ConfigError
from tests.config.configs import made

CODE = """
class Till:
    resume = "replay"

    def reset(self, task):
        return None

    def step(self, said):
        return None


def solve(task, client):
    return 1.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "till.py"
    path.write_text(CODE)
    return path


def check(**environment: Any) -> str:
    return check_environment(made(environment=environment))


def test_a_run_without_an_environment_has_none() -> None:
    assert check_environment(made()) == "none"


def test_an_environment_is_loaded_and_described(file: Path) -> None:
    assert check(function=f"{file}:Till") == (
        f"environment.function '{file}:Till': turn by turn, continued elsewhere by replay"
    )
    assert check(tools=["calculator"]) == (
        "environment.tools ['calculator']: turn by turn, tools calculator, continued elsewhere from snapshots"
    )


def test_a_command_is_looked_up_and_not_started() -> None:
    assert (
        check(command=["true"])
        == "environment.command ['true']: an agent program, continued elsewhere by running again"
    )
    with pytest.raises(ConfigError, match=r"environment.command: there is no program 'no-such-program'"):
        check(command=["no-such-program"])


def test_it_may_be_checked_within_an_event_loop(file: Path) -> None:
    async def main() -> str:
        return check(function=f"{file}:Till")

    assert "turn by turn" in asyncio.run(main())


def test_what_cannot_be_loaded_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment\.function.*Tall"):
        check(function=f"{file}:Tall")
    with pytest.raises(ConfigError, match=r"environment\.python is '/nowhere/python', but there is no such program"):
        check(function=f"{file}:Till", python="/nowhere/python")


def test_an_agent_program_needs_uvicorn(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "an agent program, continued elsewhere by running again" in check(function=f"{file}:solve")
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"is an agent program and needs uvicorn: pip install 'asyncrl\[agents\]'"):
        check(function=f"{file}:solve")
