"""
One worker of a pool: replaced when it is lost, with the input found that made it fail.

    inputs a b c d ── the worker is lost ──▶ judged in order:       a fails; b c d go to the next worker
                                             judged concurrently:   a, b, c, d are repeated one by one; an input that
                                                                    loses its worker alone fails

A worker that has judged before and now only fails is replaced too: the function may have damaged its own process.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Raw, Struct

from asyncrl.checks.reward_limits import MAX_REASON_CHARS, problem_of
from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.log import get_logger
from asyncrl.processes.allowance import AT_ONCE_BYTES, refilled
from asyncrl.reward.verifier import Verdict
from asyncrl.reward.workers.pipe import Judged
from asyncrl.reward.workers.process import WorkerProcess

log = get_logger()

LOST_IN_A_ROW = 3
"""Workers lost without a verdict in between from which on a loss is not retryable: the function is to blame."""
FAILED_IN_A_ROW = 3
"""Failures that may come back, from which on a worker that has judged before is replaced."""
START_SHARE = 30
"""A worker is replaced for failures only if it is this many times older than its start took: a start costs seconds."""


class PendingVerdict(Struct, frozen=True, eq=False):
    """An encoded `VerifierInput`, and the future of its verdict."""

    inputs: Raw
    verdict: "asyncio.Future[Verdict]"

    def settle(self, judged: Judged) -> None:
        """Set the result or the error; a future that was cancelled is left alone."""
        verdict = judged.verdict
        if verdict is None:
            self.fail(VerifierError(judged.reason[:MAX_REASON_CHARS], retryable=judged.retryable))
        elif problem := problem_of(verdict.reward, verdict.metrics, verdict.answer):
            self.fail(VerifierError(f"the reward worker sent no verdict: {problem}"))
        elif not self.verdict.done():
            self.verdict.set_result(verdict)

    def fail(self, error: VerifierError) -> None:
        if not self.verdict.done():
            self.verdict.set_exception(error)


class Record:
    """Successes and failures of one worker, which may make it suspect."""

    def __init__(self, started_at: float, start_s: float) -> None:
        self._suspect_from = started_at + START_SHARE * start_s
        self._has_judged = False
        self._failed_in_a_row = 0

    def settled(self, judged: Judged) -> None:
        if judged.verdict is not None:
            self._has_judged = True
            self._failed_in_a_row = 0
        elif judged.retryable:
            self._failed_in_a_row += 1

    def is_suspect(self, now: float) -> bool:
        return self._has_judged and self._failed_in_a_row >= FAILED_IN_A_ROW and now >= self._suspect_from


class WorkerSlot:
    def __init__(self, reward: Reward, clock: Callable[[], float] = time.monotonic) -> None:
        self._reward = reward
        self._clock = clock
        self._worker: WorkerProcess | None = None
        self._record = Record(0.0, 0.0)
        self._started_at: float | None = None
        self._lost_in_a_row = 0
        self.replaced = 0

    async def fill(self) -> WorkerProcess:
        """Return the worker, a new one if it is dead; raises `ConfigError` if that cannot load the verifiers."""
        if self._worker is not None and not self._worker.is_alive:
            log.warning("worker.lost", cause=await self._worker.cause())
            await self.clear()
        if self._worker is None:
            self._worker = await self._start()
        return self._worker

    async def clear(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.kill()

    async def judge(self, batch: Sequence[PendingVerdict]) -> None:
        batches = deque([list(batch)])
        while batches:
            part = batches.popleft()
            try:
                batches.extendleft(reversed(await self._attempt(await self.fill(), part)))
            except ConfigError as error:
                _fail(part, VerifierError(f"a lost reward worker could not be replaced: {error}", retryable=True))

    async def _start(self) -> WorkerProcess:
        begun, before = self._clock(), self._started_at
        self._started_at = begun
        worker = await WorkerProcess.start(self._reward, AT_ONCE_BYTES if before is None else refilled(begun - before))
        now = self._clock()
        self._record = Record(now, now - begun)
        return worker

    async def _attempt(self, worker: WorkerProcess, batch: Sequence[PendingVerdict]) -> list[list[PendingVerdict]]:
        """Judge a batch; if the worker is lost, return the batches to try next."""
        left = dict(enumerate(batch))  # with cancelled ones: the worker still judges them

        def settle(place: int, judged: Judged) -> None:
            left.pop(place).settle(judged)
            self._record.settled(judged)
            self._lost_in_a_row = 0

        try:
            await worker.judge([pending.inputs for pending in batch], settle)
        except VerifierError as error:
            log.warning("worker.lost", cause=str(error))
            self.replaced += 1
            self._lost_in_a_row += 1
            error.retryable = self._lost_in_a_row < LOST_IN_A_ROW
            await self.clear()
            parts = _blame(list(left.values()), error, concurrent=worker.concurrent)
            if not error.retryable and not worker.concurrent:
                _give_up(parts, error)
                return []
            return parts
        if self._record.is_suspect(self._clock()):
            self.replaced += 1
            await self.clear()
        return []


def _blame(left: list[PendingVerdict], error: VerifierError, *, concurrent: bool) -> list[list[PendingVerdict]]:
    """Fail the input that made the worker fail, if it is known; return the batches to try next."""
    if concurrent and len(left) > 1:
        return [[pending] for pending in left]
    _fail(left[:1], error)
    return [left[1:]] if left[1:] else []


def _give_up(parts: Sequence[Sequence[PendingVerdict]], error: VerifierError) -> None:
    """Fail inputs that nobody has judged: a function that hangs each time would take a timeout for every one."""
    for part in parts:
        _fail(part, VerifierError(f"not judged after {LOST_IN_A_ROW} lost workers in a row: {error}", retryable=True))


def _fail(batch: Sequence[PendingVerdict], error: VerifierError) -> None:
    for pending in batch:
        pending.fail(error)
