"""
One worker's place in a pool: whoever sits there is replaced when it is lost, and the sample to blame is found.

    in hand: a b c d ── the worker is lost ──▶ in order:    a is to blame; b c d go to the next worker
                                               all at once: a, b, c, d each go alone; who is lost alone is to blame
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


class Case(Struct, frozen=True, eq=False):
    """A sample and whoever waits for its verdict."""

    sample: Raw
    """Encoded."""
    verdict: "asyncio.Future[Verdict]"

    def settle(self, judged: Judged) -> None:
        """Tell who waits, if anybody still does."""
        if judged.verdict is None:
            self.fail(VerifierError(judged.fault, retryable=judged.retryable))
        elif not self.verdict.done():
            self.verdict.set_result(judged.verdict)

    def fail(self, error: VerifierError) -> None:
        """Tell who waits that there is no verdict, if anybody still waits."""
        if not self.verdict.done():
            self.verdict.set_exception(error)


class WorkerSlot:
    """A place for one worker."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._worker: WorkerProcess | None = None
        self.replaced = 0
        """Workers lost so far."""

    async def fill(self) -> WorkerProcess:
        """
        The worker that sits here; a new one if there is none, or it is dead.

        Raises:
            ConfigError: It cannot load the functions.
        """
        if self._worker is not None and not self._worker.is_alive:
            await self.clear()
        if self._worker is None:
            self._worker = await WorkerProcess.start(self._reward)
        return self._worker

    async def clear(self) -> None:
        """Kill the worker that sits here."""
        if self._worker is not None:
            await self._worker.kill()
            self._worker = None

    async def judge(self, cases: Sequence[Case]) -> None:
        """Settle every case, with as many workers as that takes."""
        batches = deque([list(cases)])
        while batches:
            batch = batches.popleft()
            try:
                batches.extendleft(reversed(await self._attempt(await self.fill(), batch)))
            except ConfigError as error:
                _fail(batch, VerifierError(f"a lost reward worker could not be replaced: {error}", retryable=True))

    async def _attempt(self, worker: WorkerProcess, cases: Sequence[Case]) -> list[list[Case]]:
        """Judge cases; if the worker is lost over them, return the batches to try next."""
        left = dict(enumerate(cases))  # a caller may lose interest, but its sample is still in the worker's hands
        try:
            await worker.judge([case.sample for case in cases], lambda judged: left.pop(judged.index).settle(judged))
        except VerifierError as error:
            self.replaced += 1
            await self.clear()
            return _blame(list(left.values()), error, together=worker.concurrent)
        return []


def _blame(left: list[Case], error: VerifierError, *, together: bool) -> list[list[Case]]:
    """Fail the case that cost a worker, if it is known which; return what to try next."""
    if together and len(left) > 1:
        return [[case] for case in left]
    _fail(left[:1], error)
    return [left[1:]] if left[1:] else []


def _fail(cases: Sequence[Case], error: VerifierError) -> None:
    for case in cases:
        case.fail(error)
