"""The environments that a run file names."""

import asyncio
import os
from pathlib import Path

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.make import make_environments
from asyncrl.environment.pool import EnvironmentPool
from asyncrl.environment.program import Programs
from asyncrl.errors import EnvironmentFailed
from asyncrl.processes import folders


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
