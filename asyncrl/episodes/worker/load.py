"""
Code that a configuration names, as environments of one kind.

    environment.function   a class, a function that makes environments, or solve(task, client)  ─▶ Steps | Solve
    environment.tools      names of tools                                                       ─▶ Toolbox

Each has ``kind`` and ``resume``, an async ``start`` that returns the tools shown to the policy, and
``begin(task)``, which makes the environment of one episode.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from copy import copy
from typing import Any, Union

from asyncrl.environment import Client, Message, Said, Step, Task, ToolCall
from asyncrl.episodes.worker.schema import problem_of, schema_of
from asyncrl.episodes.worker.tools import ToolFailure, calculator, mcp, python, shell
from asyncrl.episodes.worker.values import BadValue, shown
from asyncrl.errors import ConfigError, ContainerFailed
from asyncrl.messages.number import number
from asyncrl.plug_in import hint, is_path, load_callable

# ── environments of other libraries ────────────────────────────────────────────────────────────
# Environments of other libraries, as the worker calls them.
#
#     skyrl-gym    init(prompt) -> (prompt, info)    step(text) -> {"observations", "reward", "done", ...}    close()
#     textarena    reset(num_players, seed)    get_observation() -> (player, text)    step(text) -> (done, info)
#                  close() -> (rewards, info)
#
# They are told by their methods. A game has as many players as ``environment.seats``, and the policy is each of them.


def adapted(environment: Any, seats: int = 1) -> Any:
    """Return an environment with ``reset`` and ``step`` of asyncrl's form; raises `BadValue` if it has none of them."""
    methods = {name for name in ("reset", "init", "step", "get_observation") if callable(getattr(environment, name, 0))}
    if {"init", "step"} <= methods and "reset" not in methods:
        return SkyRLGym(environment)
    if {"reset", "step", "get_observation"} <= methods:
        return TextArena(environment, seats)
    if {"reset", "step"} <= methods:
        return environment
    raise BadValue(f"{shown(environment)} is no environment: expected the methods reset and step")


class SkyRLGym:
    """A ``skyrl_gym.Env``."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reset(self, task: Task) -> list[dict[str, Any]]:
        """Return the messages that ``init`` has added to the prompt."""
        prompt, _ = self._environment.init(list(task.messages))
        if prompt[: len(task.messages)] != task.messages:
            raise BadValue("init changed the prompt, expected that it only adds messages: put that into the rows")
        return list(prompt[len(task.messages) :])

    def step(self, said: Said) -> Step:
        answer = self._environment.step(said.text)
        return Step(messages=list(answer["observations"]), reward=answer["reward"], done=bool(answer["done"]))

    def score(self) -> dict[str, float]:
        """Return the numbers of ``get_metrics``; the reward stays the sum of the steps."""
        metrics: dict[str, Any] = getattr(self._environment, "get_metrics", dict)()
        found = {name: number(value) for name, value in metrics.items()}
        return {name: value for name, value in found.items() if value is not None}

    def close(self) -> None:
        self._environment.close()


class TextArena:
    """A ``textarena.Env`` whose players are the seats; each reads the prompt, and what the game shows to it."""

    def __init__(self, environment: Any, seats: int = 1) -> None:
        self._environment = environment
        self._seats = seats
        self._rewards: Any = None
        self._prompt: list[Message] = []
        self._seen: dict[int, str] = {}
        """Text that each player was shown last."""

    def reset(self, task: Task) -> Step:
        self._environment.reset(num_players=self._seats, seed=task.seed)
        self._prompt = list(task.messages)
        self._seen = {}
        return self._observation()

    def step(self, said: Said) -> Step:
        done, _ = self._environment.step(said.text)
        return Step(done=True) if done else self._observation(said)

    def score(self) -> Any:
        """Return the reward of each player, 0 in a game that was not ended."""
        rewards = self._finish() or {}
        return {"score": [rewards.get(seat, 0.0) for seat in range(self._seats)]}

    def close(self) -> None:
        self._finish()

    def _finish(self) -> Any:
        if self._environment is not None:
            ended = self._environment.close()
            self._environment = None
            self._rewards = ended[0] if isinstance(ended, tuple) else ended
        return self._rewards

    def _observation(self, said: Said | None = None) -> Step:
        """Return what is new to a player, without what it has just said: some games tell all in each observation."""
        seat, shown = self._environment.get_observation()
        new = text = shown if isinstance(shown, str) else "\n".join(str(part[1]) for part in shown)
        before = self._seen.get(seat, "")
        if before and text.startswith(f"{before}\n["):  # the next line is another speaker's
            new = text[len(before) + 1 :]
        first = [] if seat in self._seen or not seat else self._prompt
        self._seen[seat] = text
        echo = re.match(rf"(\[[^\]\n]*\] )?{re.escape(said.text)}\n", new) if said and said.seat == seat else None
        return Step([*first, {"role": "user", "content": new[echo.end() :] if echo else new}], seat=seat)


# ── agent programs ─────────────────────────────────────────────────────────────────────────────
# Agent programs that are functions: they talk to the policy as to an OpenAI server, and run to their end.
#
# A plain function runs in a thread of its own. (``environment.command`` is no business of workers: each run of it has a
# keeper of its own.)


class Solve:
    """A function ``solve(task, client)``; it is its own environment, because it has no state."""

    kind = "solve"
    resume = "rerun"

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], setting: str) -> None:
        self._function = function
        self._options = options
        try:
            inspect.signature(function).bind(None, None, **options)
        except TypeError as error:
            raise ConfigError(f"{setting} cannot be called with environment.options: {error}") from error

    async def start(self) -> list[dict[str, Any]]:
        return []

    async def begin(self, task: Task) -> Solve:
        return self

    async def solve(self, task: Task, client: Client) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(task, client, **self._options)
        running = asyncio.get_running_loop().run_in_executor(
            None, lambda: self._function(task, client, **self._options)
        )
        try:
            return await asyncio.shield(running)
        finally:
            await asyncio.wait([running])  # a thread cannot be cancelled


# ── tools ──────────────────────────────────────────────────────────────────────────────────────
# The environment of ``environment.tools``: it runs the calls that the policy writes, and ends when there are none.
#
#     policy: two calls ─▶ {"role": "tool", "tool_call_id": "a", "name": "calculator", "content": "42"}, ...
#     policy: no call   ─▶ done
#
# A call that cannot be read, or whose tool raises, is answered with an error text: the policy learns from it. Tools
# keep nothing between calls, so an episode can be continued anywhere from its messages alone. Only `shell` does, in the
# container of the episode: without snapshots of it, such an episode begins anew.

SETTING = "environment.tools"
MAX_CHARS = 1 << 20
"""
Longest answer of a tool that leaves its worker; the rest is cut, and the answer says so. What the policy reads of it is
``environment.observation_tokens``.
"""
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
    """Tools by name; it is its own environment, because all state is in the container if there is one."""

    kind = "steps"
    setting = SETTING

    def __init__(
        self,
        tools: list[FunctionTool],
        servers: list[mcp.ToolServer],
        *,
        call_s: float = 60.0,
        resume: str = "snapshot",
    ) -> None:
        self.resume = resume
        self._call_s = call_s
        self._tools: dict[str, Any] = {}
        self._servers = servers
        for tool in tools:
            self._add(tool)

    @classmethod
    def load(cls, names: list[str], call_s: float, *, saves_containers: bool = False) -> Toolbox:
        """Load tools by their names in the configuration; raises `ConfigError`."""
        servers = [mcp.ToolServer(name[len(MCP) :], call_s) for name in names if name.startswith(MCP)]
        resume = "snapshot" if saves_containers or SHELL not in names else "none"
        tools = [_tool(name, call_s) for name in names if not name.startswith(MCP)]
        return cls(tools, servers, call_s=call_s, resume=resume)

    async def start(self) -> list[dict[str, Any]]:
        """Start the servers; return the schemas of all tools."""
        for server in self._servers:
            for tool in await server.start():
                self._add(tool)
        return [tool.schema for tool in self._tools.values()]

    async def begin(self, task: Task) -> Toolbox:
        """The tools of one episode: those that its row shows, or all."""
        shown = {tool["function"]["name"] for tool in task.tools} or self._tools
        ours = copy(self)
        ours._tools = {name: tool for name, tool in self._tools.items() if name in shown}
        if SHELL in ours._tools:
            ours._tools[SHELL] = FunctionTool(shell.ShellTool(task.container, self._call_s).shell)
        return ours

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
        except (ToolFailure, ContainerFailed):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  tools are user code
            return f"error: {type(error).__name__}: {str(error)[:MAX_ERROR_CHARS]}"
        return answer

    def _add(self, tool: Any) -> None:
        name = tool.schema["function"]["name"]
        if name in self._tools:
            raise ConfigError(f"{SETTING} has two tools with the name {name!r}")
        self._tools[name] = tool


SHELL = "shell"
BUILT_IN = ("calculator", "python", "python_unconfined", SHELL)


def _tool(name: str, call_s: float) -> FunctionTool:
    if name == "calculator":
        return FunctionTool(calculator.calculator)
    if name in ("python", "python_unconfined"):
        return FunctionTool(python.PythonTool.find(is_confined=name == "python", call_s=call_s).python)
    if name == SHELL:
        return FunctionTool(shell.ShellTool(None, call_s).shell)
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


# ── what the settings name ─────────────────────────────────────────────────────────────────────

FUNCTION = "environment.function"
CONTAINER = "container"
"""Way of an environment all of whose state is in its container: ``snapshot`` if that is saved, and ``none`` if not."""
RESUMES = ("replay", "snapshot", CONTAINER, "none")


class SteppedEnvironments:
    """Environments with ``reset`` and ``step``, made by a class or by a function."""

    kind = "steps"

    def __init__(
        self,
        make: Callable[..., Any],
        options: dict[str, Any],
        path: str,
        *,
        seats: int = 1,
        saves_containers: bool = False,
    ) -> None:
        self._make = make
        self._seats = seats
        self._options = options
        self._takes_task = list(_parameters(make))[:1] == ["task"]
        self.setting = f"{FUNCTION} {path!r}"
        self.resume = getattr(make, "resume", "none")
        _check(make, options, self._takes_task, self.resume, self.setting)
        if self.resume == CONTAINER:
            self.resume = "snapshot" if saves_containers else "none"
        self._tools = [_schema(tool, self.setting) for tool in getattr(make, "tools", [])]

    async def start(self) -> list[dict[str, Any]]:
        return self._tools

    async def begin(self, task: Task) -> Any:
        made = self._make(*([task] if self._takes_task else []), **self._options)
        return adapted(await made if inspect.isawaitable(made) else made, self._seats)


Code = Union[SteppedEnvironments, Solve, Toolbox]


def load(settings: dict[str, Any]) -> Code:
    """Load what ``settings`` name; raises `ConfigError`."""
    saves = settings.get("saves_containers", False)
    if settings["tools"]:
        return Toolbox.load(settings["tools"], settings["call_s"], saves_containers=saves)
    path, options = settings["function"], settings["options"]
    found = load_callable(path, setting=FUNCTION)
    if not isinstance(found, type) and list(_parameters(found))[1:2] == ["client"]:
        return Solve(found, options, f"{FUNCTION} {path!r}")
    return SteppedEnvironments(found, options, path, seats=settings.get("seats", 1), saves_containers=saves)


def _parameters(function: Callable[..., Any]) -> Any:
    """Arguments by name, which tell what it is: ``solve(task, client)``, ``make(task)``, or a class."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{FUNCTION}: {function!r:.80} has no signature; wrap it in a function") from error


def _check(make: Callable[..., Any], options: dict[str, Any], takes_task: bool, resume: Any, setting: str) -> None:
    try:
        inspect.signature(make).bind(*([None] if takes_task else []), **options)
    except TypeError as error:
        expected = "expected a class, make(task) or make() that returns an environment, or solve(task, client)"
        raise ConfigError(f"{setting} cannot be called with environment.options: {error}; {expected}") from error
    if resume not in RESUMES:
        raise ConfigError(f"{setting} has resume = {resume!r}, expected one of {', '.join(RESUMES)}")
    if not isinstance(make, type):
        return  # what it makes is seen when it is made
    wanted = ["step", "snapshot", "restore"] if resume in ("snapshot", CONTAINER) else ["step"]
    missing = [name for name in wanted if not callable(getattr(make, name, None))]
    if not (callable(getattr(make, "reset", None)) or callable(getattr(make, "init", None))):
        missing.insert(0, "reset")
    if missing:
        raise ConfigError(f"{setting} has no method {' and none '.join(missing)}")


def _schema(tool: Any, setting: str) -> dict[str, Any]:
    """Return the schema of a function, or the schema itself, which a class may also list."""
    if isinstance(tool, dict):
        if "name" not in tool.get("function", {}):
            raise ConfigError(
                f'{setting} lists the tool {tool!r:.80}, expected {{"type": "function", "function": ...}}'
            )
        return tool
    if not callable(tool):
        raise ConfigError(f"{setting} lists the tool {tool!r:.80}, expected a function")
    return schema_of(tool, setting)
