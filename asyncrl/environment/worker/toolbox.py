"""
The environment of ``environment.tools``: it runs the calls that the policy writes, and ends when there are none.

    policy: two calls ─▶ {"role": "tool", "tool_call_id": "a", "name": "calculator", "content": "42"}, ...
    policy: no call   ─▶ done

A call that cannot be read, or whose tool raises, is answered with an error text: the policy learns from it. Tools keep
nothing between calls, so an episode can be continued anywhere from its messages alone.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

from asyncrl.environment import Message, Said, Step, Task, ToolCall
from asyncrl.environment.worker.schema import problem_of, schema_of
from asyncrl.environment.worker.tools import ToolFailure, calculator, mcp, python
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path, load_callable

SETTING = "environment.tools"
MAX_CHARS = 1 << 16
"""Longest answer of a tool; the rest is cut, and the answer says so."""
MAX_ERROR_CHARS = 500
MCP = "mcp:"


class FunctionTool:
    """A typed function."""

    def __init__(self, function: Callable[..., Any], setting: str = SETTING) -> None:
        self._function = function
        self.schema = schema_of(function, setting)

    async def call(self, arguments: dict[str, Any]) -> str:
        if problem := problem_of(arguments, self.schema):
            return f"error: {problem}"
        value = self._function(**arguments)
        return text_of(await value if inspect.isawaitable(value) else value)


class Toolbox:
    """Tools by name; it is its own environment, because it has no state."""

    kind = "steps"
    resume = "snapshot"
    setting = SETTING

    def __init__(self, tools: list[FunctionTool], servers: list[mcp.ToolServer]) -> None:
        self._tools: dict[str, Any] = {}
        self._servers = servers
        for tool in tools:
            self._add(tool)

    @classmethod
    def load(cls, names: list[str], call_s: float) -> Toolbox:
        """Load tools by their names in the configuration; raises `ConfigError`."""
        servers = [mcp.ToolServer(name[len(MCP) :], call_s) for name in names if name.startswith(MCP)]
        return cls([_tool(name, call_s) for name in names if not name.startswith(MCP)], servers)

    async def start(self) -> list[dict[str, Any]]:
        """Start the servers; return the schemas of all tools."""
        for server in self._servers:
            for tool in await server.start():
                self._add(tool)
        return [tool.schema for tool in self._tools.values()]

    async def begin(self, task: Task) -> Toolbox:
        return self

    async def reset(self, task: Task) -> None:
        return None

    async def step(self, said: Said) -> Step:
        if not said.tool_calls:
            return Step(done=True)
        return Step(messages=list(await asyncio.gather(*map(self._answer, said.tool_calls))))

    async def snapshot(self) -> bytes:
        return b""

    async def restore(self, task: Task, state: bytes) -> None:
        return None

    async def _answer(self, call: ToolCall) -> Message:
        content = await self._called(call)
        if len(content) > MAX_CHARS:
            content = f"{content[:MAX_CHARS]}\n[{len(content) - MAX_CHARS} more characters]"
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}

    async def _called(self, call: ToolCall) -> str:
        if call.problem:
            return f"error: the call cannot be read: {call.problem}"
        if call.name not in self._tools:
            return f"error: there is no tool {call.name!r}: {hint(call.name, self._tools)}"
        try:
            answer: str = await self._tools[call.name].call(call.arguments)
        except ToolFailure:
            raise
        except Exception as error:  # noqa: BLE001  tools are user code
            return f"error: {type(error).__name__}: {str(error)[:MAX_ERROR_CHARS]}"
        return answer

    def _add(self, tool: Any) -> None:
        name = tool.schema["function"]["name"]
        if name in self._tools:
            raise ConfigError(f"{SETTING} has two tools with the name {name!r}")
        self._tools[name] = tool


BUILT_IN = ("calculator", "python", "python_unconfined")


def _tool(name: str, call_s: float) -> FunctionTool:
    if name == "calculator":
        return FunctionTool(calculator.calculator)
    if name in ("python", "python_unconfined"):
        return FunctionTool(python.PythonTool.find(is_confined=name == "python", call_s=call_s).python)
    if not is_path(name):
        raise ConfigError(f"{SETTING}: unknown tool {name!r}: {hint(name, BUILT_IN)} (or file.py:name, or mcp:COMMAND)")
    return FunctionTool(load_callable(name, setting=SETTING))


def text_of(value: Any) -> str:
    """Text is kept, other values become JSON, or their ``str`` if they have no form in it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
