"""Tools of an MCP server: with the package where it is installed, by their results anywhere."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes.pool import EnvironmentPool
from asyncrl.episodes.worker.tools.mcp import content_of
from asyncrl.errors import ConfigError
from tests.episodes.environments.agents import PYTHON, needs
from tests.episodes.environments.environments import task

SERVER = f"mcp:{PYTHON} {Path(__file__).parents[2] / 'mcp_server.py'}"


def result(*parts: SimpleNamespace, error: bool = False, structured: object = None) -> SimpleNamespace:
    return SimpleNamespace(content=list(parts), is_error=error, structured_content=structured)


def test_contents_become_text() -> None:
    text, image = SimpleNamespace(type="text", text="a"), SimpleNamespace(type="image", data="...")

    assert content_of(result(text, image, text)) == "a\n[image]\na"
    assert content_of(result(text, error=True)) == "error: a"
    assert content_of(result(structured={"a": 1})) == '{"a": 1}'


def answers(*calls: CalledTool) -> list[str]:
    """Answers to calls, one turn each."""

    async def ask() -> list[str]:
        async with EnvironmentPool(Environment(tools=[SERVER], python=PYTHON, workers=1), "run", "node") as pool:
            assert [tool["function"]["name"] for tool in pool.description.tools] == ["look", "add"]
            episode = pool.open("a")
            await episode.reset(task())
            turns = [await episode.step(PolicyTurn(text="", tool_calls=[call])) for call in calls]
            assert pool.replaced == 0
            return [str(turn.messages[0]["content"]) for turn in turns]

    return asyncio.run(ask())


@pytest.mark.slow("the package of MCP takes seconds to import")
@needs("mcp")
@pytest.mark.timeout(120)
def test_tools_of_a_server_are_called_and_their_errors_answered() -> None:
    good, sum_of_two, bad, other = answers(
        CalledTool(name="look", arguments={"name": "abc"}),
        CalledTool(name="add", arguments={"left": 1, "right": 3}),
        CalledTool(name="look", arguments={"name": "z"}),
        CalledTool(name="add", arguments={"left": 1, "right": 3, "third": 5}),
    )

    assert (good, sum_of_two) == ("abc holds 3", "4")
    assert other == "error: there is no argument 'third', expected left, right"
    assert bad.startswith("error: Error executing tool look")


@pytest.mark.slow("the package of MCP takes seconds to import")
@needs("mcp")
@pytest.mark.timeout(120)
def test_a_server_that_ended_is_answered_as_an_error_and_started_again() -> None:
    assert answers(
        CalledTool(name="look", arguments={"name": "end"}), CalledTool(name="look", arguments={"name": "abc"})
    ) == [
        "error: Connection closed",
        "abc holds 3",
    ]


@pytest.mark.slow("the package of MCP takes seconds to import")
@needs("mcp")
@pytest.mark.timeout(120)
def test_a_server_that_does_not_start_is_refused() -> None:
    environment = Environment(tools=["mcp:/nonexistent/server"], python=PYTHON, workers=1)

    with pytest.raises(ConfigError, match=r"environment\.tools 'mcp:/nonexistent/server' could not be started"):
        asyncio.run(EnvironmentPool(environment, "run", "node").start())


def test_without_the_package_such_tools_are_refused() -> None:
    environment = Environment(tools=["mcp:server"], python="/usr/bin/python3", workers=1)

    if Path("/usr/bin/python3").exists():
        with pytest.raises(ConfigError, match=r"needs the package mcp in environment\.python"):
            asyncio.run(EnvironmentPool(environment, "run", "node").start())
