"""
Agent programs: functions and commands that talk to the policy as to an OpenAI server, and run to their end.

A plain function runs in a thread of its own. A command reads its task as JSON from stdin, finds the policy in its
environment, and may print its score, a number or a JSON object with ``score``, as its last line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from asyncrl.environment import Client, Task
from asyncrl.errors import ConfigError

THREADS = 1024
"""Plain functions that may run at once in a worker."""
LAST_BYTES = 1 << 16
"""Output of a command that is kept to find its last line."""
CHUNK_BYTES = 1 << 16


class ProgramFailed(Exception):
    """A command ended with an exit code other than 0."""


class Solve:
    """A function ``solve(task, client)``; it is its own environment, because it has no state."""

    kind = "solve"
    resume = "rerun"

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], setting: str) -> None:
        self._function = function
        self._options = options
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="solve")
        self.setting = setting
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
            self._threads, lambda: self._function(task, client, **self._options)
        )
        try:
            return await asyncio.shield(running)
        finally:
            await asyncio.wait([running])  # a thread cannot be cancelled


class Command:
    """A program, started once for each episode."""

    kind = "command"
    resume = "rerun"
    setting = "environment.command"

    def __init__(self, command: list[str]) -> None:
        self._command = command
        if shutil.which(command[0]) is None:
            raise ConfigError(f"environment.command: there is no program {command[0]!r}")

    async def start(self) -> list[dict[str, Any]]:
        return []

    async def begin(self, task: Task) -> Command:
        return self

    async def solve(self, task: Task, client: Client) -> Any:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                "OPENAI_BASE_URL": client.base_url,
                "OPENAI_API_KEY": client.key,
                "ASYNCRL_EPISODE": task.name,
            },
        )
        assert process.stdin is not None, "started with pipes"
        assert process.stdout is not None, "started with pipes"
        try:
            process.stdin.write(json.dumps(dataclasses.asdict(task)).encode("utf-8", "replace"))
            process.stdin.close()
            last = await _last_line(process.stdout)
            code = await process.wait()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        if code:
            raise ProgramFailed(f"{self._command[0]} exited with code {code}")
        return _score(last)


async def _last_line(stream: asyncio.StreamReader) -> str:
    kept = b""
    while chunk := await stream.read(CHUNK_BYTES):
        kept = (kept + chunk)[-LAST_BYTES:]
    lines = kept.decode("utf-8", "replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def _score(line: str) -> Any:
    """Return the number or the object with ``score`` that a line is; None for any other line."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    is_score = isinstance(value, (int, float)) or (isinstance(value, dict) and "score" in value)
    return value if is_score else None
