"""
Agent programs that are functions: they talk to the policy as to an OpenAI server, and run to their end.

A plain function runs in a thread of its own. (``environment.command`` is no business of workers: each run of it has a
keeper of its own.)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from asyncrl.environment import Client, Task
from asyncrl.errors import ConfigError


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
