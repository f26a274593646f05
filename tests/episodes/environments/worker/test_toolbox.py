"""The environment of tools: calls in, messages out."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.environment import TOOLS
from asyncrl.environment import Message, Said, Step, Task, ToolCall
from asyncrl.episodes.worker.load import BUILT_IN, MAX_CHARS, FunctionTool, Toolbox, text_of
from asyncrl.episodes.worker.tools import ToolFailure
from asyncrl.errors import ConfigError


def test_the_tools_of_workers_are_those_that_a_run_file_may_name() -> None:
    assert BUILT_IN == TOOLS


def double(number: int) -> int:
    return 2 * number


async def fail(kind: str) -> str:
    if kind == "broken":
        raise ToolFailure("out of order")
    if kind == "exit":
        sys.exit(3)
    raise KeyError(kind)


def talk(length: int) -> str:
    return "x" * length


def step(*calls: ToolCall) -> Step:
    toolbox = Toolbox([FunctionTool(function) for function in (double, fail, talk)], [])
    return asyncio.run(toolbox.step(Said("", tool_calls=list(calls))))


def answer(call: ToolCall) -> Message:
    (message,) = step(call).messages
    return message


def test_calls_are_answered_in_their_order() -> None:
    answered = step(ToolCall("double", {"number": 4}, "a"), ToolCall("double", {"number": 5}, "b"))

    assert not answered.done
    assert answered.messages == [
        {"role": "tool", "tool_call_id": "a", "name": "double", "content": "8"},
        {"role": "tool", "tool_call_id": "b", "name": "double", "content": "10"},
    ]


def test_a_turn_without_calls_ends_the_episode() -> None:
    assert step() == Step(done=True)


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (ToolCall("double", {}, problem="no JSON"), "error: the call cannot be read: no JSON"),
        (ToolCall("dubble", {}), "error: there is no tool 'dubble': did you mean 'double'?"),
        (ToolCall("double", {}), "error: argument 'number' is missing"),
        (ToolCall("double", {"number": "4"}), "error: argument 'number' is '4', expected an integer"),
        (ToolCall("fail", {"kind": "x"}), "error: KeyError: 'x'"),
        (ToolCall("fail", {"kind": "exit"}), "error: SystemExit: 3"),
    ],
)
def test_a_bad_call_is_answered_to_the_policy(call: ToolCall, content: str) -> None:
    assert answer(call)["content"] == content


def test_a_tool_that_is_out_of_order_fails_the_episode() -> None:
    with pytest.raises(ToolFailure, match="out of order"):
        step(ToolCall("fail", {"kind": "broken"}))


def test_a_long_answer_is_cut() -> None:
    content = answer(ToolCall("talk", {"length": MAX_CHARS + 7}))["content"]

    assert content.endswith("x\n[7 more characters]")


@pytest.mark.parametrize(
    ("value", "text"), [("a", "a"), (None, "null"), ({"ä": [1]}, '{"ä": [1]}'), ({1, 2}, "{1, 2}"), (True, "true")]
)
def test_values_become_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_an_episode_is_continued_from_nothing() -> None:
    toolbox = Toolbox([], [])
    task = Task([])

    assert toolbox.resume == "snapshot"
    assert asyncio.run(toolbox.snapshot()) == b""
    asyncio.run(toolbox.restore(task, b""))
    assert asyncio.run(asyncio.run(toolbox.begin(task)).step(Said(text="done"))) == Step(done=True)


def test_an_episode_has_the_tools_of_its_row_alone() -> None:
    def add(a: int) -> int:
        return a + 1

    def halve(a: int) -> float:
        return a / 2

    toolbox = Toolbox([FunctionTool(add), FunctionTool(halve)], [])
    calls = [ToolCall(name=name, arguments={"a": 4}, id=name) for name in ("add", "halve")]

    async def answers(*tools: str) -> list[str]:
        task = Task([], tools=[{"type": "function", "function": {"name": name}} for name in tools])
        step = await (await toolbox.begin(task)).step(Said(text="", tool_calls=calls))
        return [message["content"] for message in step.messages]

    assert asyncio.run(answers("halve")) == ["error: there is no tool 'add': expected one of: halve", "2.0"]
    assert asyncio.run(answers()) == ["5", "2.0"]


def test_tools_are_loaded_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def search(query: str) -> str: return query")

    toolbox = Toolbox.load(["calculator", f"{tmp_path}/mine.py:search"], call_s=10.0)

    assert [tool["function"]["name"] for tool in asyncio.run(toolbox.start())] == ["calculator", "search"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["calculatr"], "unknown tool 'calculatr': did you mean 'calculator'"),
        (["calculator", "calculator"], "two tools with the name 'calculator'"),
        (["mcp:"], "names no command"),
        (["mcp:'x"], "No closing quotation"),
    ],
)
def test_names_that_cannot_be_used_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"environment.tools.*{message}"):
        Toolbox.load(names, call_s=10.0)
