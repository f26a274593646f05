"""Loads the run's environment in a worker before anything starts, as a rollout will: it names what is missing."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.environment.interface import Description
from asyncrl.environment.make import make_environments
from asyncrl.environment.worker_process import named
from asyncrl.errors import ConfigError

KINDS = {"steps": "turn by turn", "solve": "an agent program", "command": "an agent program"}
RESUMES = {
    "replay": "continued elsewhere by replay",
    "snapshot": "continued elsewhere from snapshots",
    "rerun": "continued elsewhere by running again",
    "none": "begun anew elsewhere",
}
"""Ways to go on after a node is lost, by `Description.resume`."""
INSTALL = "pip install 'asyncrl[agents]'"
SHOWN = 5
"""Most tools that are named."""


def check_environment(config: Config) -> str:
    """
    Describe the environment of a run; ``none`` without one.

    Raises `ConfigError` if its interpreter or a package is missing, or its code cannot be loaded.
    """
    if not config.environment.is_set:
        return "none"
    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
        description = thread.submit(asyncio.run, _described(config)).result()
    if description.kind != "steps" and find_spec("uvicorn") is None:
        raise ConfigError(f"{named(config.environment)} is an agent program and needs uvicorn: {INSTALL}")
    return ", ".join([f"{named(config.environment)}: {KINDS[description.kind]}", *_abilities(description)])


async def _described(config: Config) -> Description:
    async with make_environments(replace(config.environment, workers=1), "check", "check") as environments:
        return environments.description


def _abilities(description: Description) -> list[str]:
    tools = [tool["function"]["name"] for tool in description.tools]
    shown = ", ".join(tools[:SHOWN]) + (f" and {len(tools) - SHOWN} more" if len(tools) > SHOWN else "")
    return [*([f"tools {shown}"] if tools else []), RESUMES[description.resume]]
