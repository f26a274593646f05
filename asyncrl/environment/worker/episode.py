"""
One episode in a worker: its environment, and one call at a time.

    reset ─▶ begin ─▶ environment.reset(task)            restore likewise
    step, score, snapshot, solve, close                  methods of that environment
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import sys
from collections.abc import Callable
from typing import Any

from asyncrl.environment import Client, Said, Task, ToolCall
from asyncrl.environment.worker.load import Code
from asyncrl.environment.worker.values import BadValue, reset_of, score_of, shown, step_of

CLOSE_S = 5.0
"""Seconds for ``close`` of an environment."""


class WorkerEpisode:
    def __init__(self, code: Code) -> None:
        self._code = code
        self._environment: Any = None
        self._turn = asyncio.Lock()

    async def call(self, request: dict[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
        """Run one method, after the one before it; ``begun`` is called when its turn has come."""
        async with self._turn:
            begun()
            method = METHODS[request["call"]]
            return await method(self, request)

    async def _reset(self, request: dict[str, Any]) -> dict[str, Any]:
        task = await self._begin(request)
        return reset_of(await _run(self._environment.reset, task))

    async def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        said = request["said"]
        calls = [ToolCall(**call) for call in said.pop("tool_calls")]
        return step_of(await _run(self._environment.step, Said(tool_calls=calls, **said)), "step")

    async def _score(self, request: dict[str, Any]) -> dict[str, Any]:
        score = getattr(self._environment, "score", None)
        return score_of(await _run(score) if score else None, "score")

    async def _solve(self, request: dict[str, Any]) -> dict[str, Any]:
        task = await self._begin(request)
        client = Client(request["base_url"], request["key"])
        return score_of(await _run(self._environment.solve, task, client), "the program")

    async def _snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        state = await _run(self._environment.snapshot)
        if not isinstance(state, bytes):
            raise BadValue(f"snapshot returned {shown(state)}, expected bytes")
        return {"state": base64.b64encode(state).decode()}

    async def _restore(self, request: dict[str, Any]) -> dict[str, Any]:
        task = await self._begin(request)
        await _run(self._environment.restore, task, base64.b64decode(request["state"]))
        return {}

    async def _close(self, request: dict[str, Any]) -> dict[str, Any]:
        environment, self._environment = self._environment, None
        if close := getattr(environment, "close", None):
            try:
                await asyncio.wait_for(_run(close), CLOSE_S)
            except asyncio.TimeoutError:
                sys.stderr.write(f"environment: close took longer than {CLOSE_S:g} s and was given up\n")
        return {}

    async def _begin(self, request: dict[str, Any]) -> Task:
        """Make the environment, after closing that of an earlier ``reset``."""
        await self._close(request)
        task = Task(**request["task"])
        self._environment = await self._code.begin(task)
        return task


async def _run(method: Callable[..., Any], *arguments: Any) -> Any:
    value = method(*arguments)
    return await value if inspect.isawaitable(value) else value


METHODS = {
    "reset": WorkerEpisode._reset,
    "step": WorkerEpisode._step,
    "score": WorkerEpisode._score,
    "solve": WorkerEpisode._solve,
    "snapshot": WorkerEpisode._snapshot,
    "restore": WorkerEpisode._restore,
    "close": WorkerEpisode._close,
}
