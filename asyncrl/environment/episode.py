"""The environment of one episode, in a worker of the pool: `asyncrl.environment.interface.EnvironmentEpisode`."""

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.environment.interface import Answer, PolicyTurn, Score, TaskInput
from asyncrl.environment.worker_process import WorkerProcess
from asyncrl.environment.worker_slot import WorkerSlot, lost_with
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.log import get_logger

CLOSE_S = 6.0
"""Seconds that `close` waits; a second more than a worker gives an environment."""

log = get_logger()
T = TypeVar("T", bound=Struct)


class State(Struct):
    state: str


class Nothing(Struct): ...


class PooledEpisode:
    """Bound to a worker by its first call; if that is lost, the episode is lost."""

    def __init__(self, name: str, number: int, slot: WorkerSlot, on_closed: "Callable[[PooledEpisode], None]") -> None:
        self.name = name
        self.slot = slot
        self._number = number
        self._on_closed = on_closed
        self._worker: WorkerProcess | None = None
        self._is_closed = False

    async def reset(self, task: TaskInput, /) -> Answer:
        return await self._call("reset", Answer, task=task)

    async def step(self, said: PolicyTurn, /) -> Answer:
        return await self._call("step", Answer, said=said)

    async def score(self) -> Score:
        return await self._call("score", Score)

    async def snapshot(self) -> bytes:
        return base64.b64decode((await self._call("snapshot", State)).state)

    async def restore(self, task: TaskInput, state: bytes, /) -> None:
        await self._call("restore", Nothing, task=task, state=base64.b64encode(state).decode())

    async def solve(self, task: TaskInput, base_url: str, key: str, /) -> Score:
        return await self._call("solve", Score, is_limited=False, task=task, base_url=base_url, key=key)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._worker is not None and self._worker.loss is None:
                await self._close(self._worker)
        finally:
            self._on_closed(self)

    async def _close(self, worker: WorkerProcess) -> None:
        call = worker.send(self.name, "close", {"episode": self._number}, is_limited=True)
        await asyncio.wait([call.answer], timeout=CLOSE_S)
        if not call.answer.done():
            log.warning("environment.close_hangs", episode=self.name, after_s=CLOSE_S)
        elif error := call.answer.exception():
            log.warning("environment.close_failed", episode=self.name, reason=str(error))
        if worker.loss is None:
            self.slot.suspects.acquit(self.name)

    async def _call(self, method: str, kind: type[T], *, is_limited: bool = True, **fields: Any) -> T:
        worker = await self._bound()
        call = worker.send(self.name, method, {"episode": self._number, **fields}, is_limited=is_limited)
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            worker.cancel(call)
            raise
        finally:
            if worker.loss is None:
                self.slot.finished()
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(answer, type=kind)
        raise EnvironmentFailed(f"the worker's answer to {method} is none: {bytes(answer)[:80]!r}", retryable=False)

    async def _bound(self) -> WorkerProcess:
        if self._is_closed:
            raise EnvironmentFailed("the episode was closed")
        if self._worker is None:
            try:
                self._worker = await self.slot.worker()
            except ConfigError as error:
                raise EnvironmentFailed(f"a lost worker could not be replaced: {error}") from error
        if self._worker.loss is not None:
            raise lost_with(self._worker.loss.reason)
        return self._worker
