"""The interface of a rollout to environments: what implements it, and the classes of user code that it mirrors."""

import asyncio
import dataclasses
import os
from pathlib import Path

import msgspec
import pytest

from asyncrl import environment
from asyncrl.config.sections.environment import Environment
from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes import environment as interface
from asyncrl.episodes.pool import EnvironmentPool, Programs, make_environments
from asyncrl.errors import EnvironmentFailed
from asyncrl.workers import folders


@pytest.mark.parametrize(
    ("wire", "user"),
    [
        (interface.TaskInput, environment.Task),
        (CalledTool, environment.ToolCall),
        (PolicyTurn, environment.Said),
        (interface.Answer, environment.Step),
    ],
)
def test_user_code_sees_the_fields_that_are_sent(wire: type[msgspec.Struct], user: type) -> None:
    seen = {field.name for field in dataclasses.fields(user)} - {"container"}  # which the worker makes
    assert {field.name for field in msgspec.structs.fields(wire)} == seen


def test_the_pool_implements_the_interface() -> None:
    environments: interface.Environments = EnvironmentPool(Environment(tools=["calculator"]), "run", "node")
    episode: interface.EnvironmentEpisode = environments.open("run/train/1/0")

    assert episode


def test_a_command_is_programs_and_all_else_a_pool_of_workers() -> None:
    assert isinstance(make_environments(Environment(command=["true"]), "run", "node"), Programs)
    assert isinstance(make_environments(Environment(tools=["calculator"]), "run", "node"), EnvironmentPool)


@pytest.mark.parametrize("environment", [Environment(command=["true"]), Environment(tools=["calculator"], workers=1)])
def test_entering_removes_what_killed_nodes_left_and_leaving_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Environment
) -> None:
    base = tmp_path / "workers"
    monkeypatch.setattr(folders, "default_base", lambda: base)
    left = folders.make("asyncrl-environment-of-a-killed-node", base)
    os.close(left.lock)

    async def enter() -> None:
        async with make_environments(environment, "run", "node") as environments:
            assert not left.path.exists()
            environments.open("run/train/0/0")
        with pytest.raises(EnvironmentFailed, match="closed"):
            environments.open("run/train/0/1")

    asyncio.run(enter())
