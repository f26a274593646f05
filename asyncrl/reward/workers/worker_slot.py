"""
One worker of a pool: replaced when it is lost, with the input found that made it fail.

    inputs a b c d ── the worker is lost ──▶ judged in order:       a fails; b c d go to the next worker
                                             judged concurrently:   a, b, c, d are repeated one by one; an input that
                                                                    loses its worker alone fails
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec import Raw, Struct

from asyncrl.config.sections import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import Verdict
from asyncrl.reward.workers.pipe import Judged
from asyncrl.reward.workers.process import WorkerProcess


class PendingVerdict(Struct, frozen=True, eq=False):
    """An encoded `VerifierInput`, and the future of its verdict."""

    inputs: Raw
    verdict: "asyncio.Future[Verdict]"

    def settle(self, judged: Judged) -> None:
        """Set the result or the error; a future that was cancelled is left alone."""
        if judged.verdict is None:
            self.fail(VerifierError(judged.reason, retryable=judged.retryable))
        elif not self.verdict.done():
            self.verdict.set_result(judged.verdict)

    def fail(self, error: VerifierError) -> None:
        if not self.verdict.done():
            self.verdict.set_exception(error)


class WorkerSlot:
    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._worker: WorkerProcess | None = None
        self.replaced = 0

    async def fill(self) -> WorkerProcess:
        """Return the worker, a new one if it is dead; raises `ConfigError` if that cannot load the verifiers."""
        if self._worker is not None and not self._worker.is_alive:
            await self.clear()
        if self._worker is None:
            self._worker = await WorkerProcess.start(self._reward)
        return self._worker

    async def clear(self) -> None:
        if self._worker is not None:
            await self._worker.kill()
            self._worker = None

    async def judge(self, batch: Sequence[PendingVerdict]) -> None:
        batches = deque([list(batch)])
        while batches:
            part = batches.popleft()
            try:
                batches.extendleft(reversed(await self._attempt(await self.fill(), part)))
            except ConfigError as error:
                _fail(part, VerifierError(f"a lost reward worker could not be replaced: {error}", retryable=True))

    async def _attempt(self, worker: WorkerProcess, batch: Sequence[PendingVerdict]) -> list[list[PendingVerdict]]:
        """Judge a batch; if the worker is lost, return the batches to try next."""
        left = dict(enumerate(batch))  # with cancelled ones: the worker still judges them
        try:
            await worker.judge(
                [pending.inputs for pending in batch], lambda judged: left.pop(judged.index).settle(judged)
            )
        except VerifierError as error:
            self.replaced += 1
            await self.clear()
            return _blame(list(left.values()), error, concurrent=worker.concurrent)
        return []


def _blame(left: list[PendingVerdict], error: VerifierError, *, concurrent: bool) -> list[list[PendingVerdict]]:
    """Fail the input that made the worker fail, if it is known; return the batches to try next."""
    if concurrent and len(left) > 1:
        return [[pending] for pending in left]
    _fail(left[:1], error)
    return [left[1:]] if left[1:] else []


def _fail(batch: Sequence[PendingVerdict], error: VerifierError) -> None:
    for pending in batch:
        pending.fail(error)
