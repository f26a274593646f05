"""
Judging, in processes that can be killed.

    judge() ─┐                 ┌─ Seat ── worker process
    judge() ─┼─ waiting ─ share┤
    judge() ─┘                 └─ Seat ── worker process

A verifier is code of the person who trains, fed with text of the policy that is paid for it: it raises, hangs, eats
memory, calls `sys.exit`. None of that reaches this process, and none of it becomes a reward.
"""

import asyncio
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Raw

from asyncrl.config.sections import Reward
from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.worker_slot import Case, WorkerSlot

MAX_BATCH = 64
"""Samples in one frame to a worker: enough that the pipe costs little, few enough that one that hangs delays few."""


class WorkerPool:
    """
    Verdicts from as many worker processes as ``reward.workers``.

    Example:
        async with WorkerPool(Reward(function="gsm8k")) as pool:
            verdict = await pool.judge(Sample(completion="#### 4", answer="4"))
    """

    def __init__(self, reward: Reward) -> None:
        self._seats = [WorkerSlot(reward) for _ in range(reward.workers)]
        self._waiting: asyncio.Queue[Case] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def replaced(self) -> int:
        """Workers that hung or died, so far."""
        return sum(seat.replaced for seat in self._seats)

    async def start(self) -> None:
        """
        Start the workers; return once all have loaded the functions.

        Raises:
            ConfigError: One cannot be loaded; no worker is left running.
        """
        try:
            started = await asyncio.gather(*(seat.fill() for seat in self._seats), return_exceptions=True)
            for outcome in started:
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await self.aclose()
            raise
        self._tasks = [asyncio.create_task(self._attend(seat)) for seat in self._seats]

    async def judge(self, sample: VerifierInput) -> Verdict:
        """
        The verdict on one sample. Call it many times at once: what waits travels together.

        Raises:
            VerifierError: The function raised, hung, or returned no finite number, or its worker died; says which, and
                whether another try may help.
        """
        if self._closed or not self._tasks:
            raise VerifierError(
                f"the reward pool {'was closed' if self._closed else 'was not started'}", retryable=True
            )
        try:
            encoded = Raw(msgspec.msgpack.encode(sample))
        except UnicodeEncodeError as error:
            raise VerifierError(f"the sample is no valid text: {error.reason} at {error.start}") from error
        case = Case(encoded, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(case)
        return await case.verdict

    async def aclose(self) -> None:
        """Kill every worker and what it started; who still waits for a verdict is told. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(seat.clear() for seat in self._seats))
        while not self._waiting.empty():
            self._waiting.get_nowait().fail(_closed())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _attend(self, seat: WorkerSlot) -> None:
        while True:
            cases = await self._share()
            try:
                await seat.judge(cases)
            finally:
                for case in cases:
                    case.fail(_closed())

    async def _share(self) -> list[Case]:
        """What one seat takes: its part of what waits, so that a slow function keeps all of them busy."""
        cases = [await self._waiting.get()]
        part = min(MAX_BATCH, -(-(self._waiting.qsize() + 1) // len(self._seats)))
        while len(cases) < part:
            cases.append(self._waiting.get_nowait())
        return [case for case in cases if not case.verdict.done()]


def _closed() -> VerifierError:
    return VerifierError("the reward pool was closed before the verdict", retryable=True)
