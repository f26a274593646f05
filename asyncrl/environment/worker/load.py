"""
Code that a configuration names, as environments of one kind.

    environment.function   a class, a function that makes environments, or solve(task, client)  ─▶ Steps | Solve
    environment.tools      names of tools                                                       ─▶ Toolbox

Each has ``kind`` and ``resume``, an async ``start`` that returns the tools shown to the policy, and
``begin(task)``, which makes the environment of one episode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Union

from asyncrl.environment import Task
from asyncrl.environment.worker.adapters import adapted
from asyncrl.environment.worker.schema import schema_of
from asyncrl.environment.worker.solve import Solve
from asyncrl.environment.worker.toolbox import Toolbox
from asyncrl.errors import ConfigError
from asyncrl.plug_in import load_callable

FUNCTION = "environment.function"
RESUMES = ("replay", "snapshot", "none")


class SteppedEnvironments:
    """Environments with ``reset`` and ``step``, made by a class or by a function."""

    kind = "steps"

    def __init__(self, make: Callable[..., Any], options: dict[str, Any], path: str) -> None:
        self._make = make
        self._options = options
        self._takes_task = _takes_task(make)
        self.setting = f"{FUNCTION} {path!r}"
        self.resume = getattr(make, "resume", "none")
        _check(make, options, self._takes_task, self.resume, self.setting)
        self._tools = [_schema(tool, self.setting) for tool in getattr(make, "tools", [])]

    async def start(self) -> list[dict[str, Any]]:
        return self._tools

    async def begin(self, task: Task) -> Any:
        made = self._make(*([task] if self._takes_task else []), **self._options)
        return adapted(await made if inspect.isawaitable(made) else made)


Code = Union[SteppedEnvironments, Solve, Toolbox]


def load(settings: dict[str, Any]) -> Code:
    """Load what ``settings`` name; raises `ConfigError`."""
    if settings["tools"]:
        return Toolbox.load(settings["tools"], settings["call_s"])
    path, options = settings["function"], settings["options"]
    found = load_callable(path, setting=FUNCTION)
    if not isinstance(found, type) and _is_program(found):
        return Solve(found, options, f"{FUNCTION} {path!r}")
    return SteppedEnvironments(found, options, path)


def _is_program(function: Callable[..., Any]) -> bool:
    """True for ``solve(task, client)``: any function whose second argument is called ``client``."""
    return list(_parameters(function))[1:2] == ["client"]


def _takes_task(make: Callable[..., Any]) -> bool:
    """True if a function or class wants the task as its first argument, which is called ``task`` then."""
    return list(_parameters(make))[:1] == ["task"]


def _parameters(function: Callable[..., Any]) -> Any:
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
    wanted = ["step", "snapshot", "restore"] if resume == "snapshot" else ["step"]
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
