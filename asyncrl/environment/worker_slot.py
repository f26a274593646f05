"""
One worker of a pool: replaced when it is lost, with the episode found that made it fail.

    episodes a b c ── b hangs ──▶  b fails: retryable, and not lost
                                   a, c are lost with the worker, and may be continued on another one at once
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.calls import Suspects
from asyncrl.environment.interface import Description
from asyncrl.environment.worker_process import Loss, LostInLoading, WorkerProcess
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.processes.allowance import AT_ONCE_BYTES, refilled

LOST_IN_A_ROW = 3
"""Workers lost without a finished call in between, from which on a loss is not retryable: the code is to blame."""


class WorkerSlot:
    """Holds one worker, and starts another one when it is lost."""

    def __init__(self, environment: Environment, variables: Mapping[str, str], suspects: Suspects) -> None:
        self._environment = environment
        self._variables = variables
        self.suspects = suspects
        self._starting: asyncio.Task[WorkerProcess] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._started_at: float | None = None
        self._lost_in_a_row = 0
        self.description: Description | None = None
        self.episodes = 0
        """Open episodes."""
        self.replaced = 0

    async def worker(self) -> WorkerProcess:
        """Return the worker, when it has started; raises `ConfigError` if it cannot load the environment."""
        starting = self._starting
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception())):
            starting = self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(starting)

    def finished(self) -> None:
        """Note that a call was answered."""
        self._lost_in_a_row = 0

    async def clear(self) -> None:
        """Kill the worker and fail its calls; wait for those that are being killed. Idempotent."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if not starting.cancelled() and starting.exception() is None:
                worker = starting.result()
                worker.fail(lambda _: lost_with("the environments of this rollout were closed"))
                await worker.kill()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _start(self) -> WorkerProcess:
        begun, before = time.monotonic(), self._started_at
        self._started_at = begun
        allowance = AT_ONCE_BYTES if before is None else refilled(begun - before)
        worker, description = await self._loaded(allowance)
        if self.description is not None and description != self.description:
            await worker.kill()
            raise ConfigError("a worker that was replaced describes the environment differently than the first ones")
        self.description = description
        return worker

    async def _loaded(self, output_bytes: int) -> tuple[WorkerProcess, Description]:
        """Start a worker. One that was killed while it loaded is tried again; the last loss is the code's."""
        for _ in range(LOST_IN_A_ROW - 1):
            with suppress(LostInLoading):
                return await self._load(output_bytes)
        return await self._load(output_bytes)

    async def _load(self, output_bytes: int) -> tuple[WorkerProcess, Description]:
        lost: list[WorkerProcess] = []
        worker, description = await WorkerProcess.start(
            self._environment,
            lambda loss: self._lose(lost[0], loss),
            variables=self._variables,
            output_bytes=output_bytes,
        )
        lost.append(worker)
        return worker, description

    def _lose(self, worker: WorkerProcess, loss: Loss) -> None:
        """Fail all calls of the worker, and kill it; the next call starts another one."""
        self.replaced += 1
        self._lost_in_a_row += 1
        names = {call.episode for call in loss.culprits}
        blamed = names if loss.has_hung else self.suspects.blame(names)
        retryable = self._lost_in_a_row < LOST_IN_A_ROW
        worker.fail(
            lambda call: (
                EnvironmentFailed(loss.reason, retryable=retryable)
                if call.episode in blamed
                else lost_with(loss.reason)
            )
        )
        self._starting = None
        ending = asyncio.create_task(worker.kill())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def lost_with(reason: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"the episode was lost with its worker: {reason}", is_lost=True)
