"""
A pool of verifier workers: processes that can be killed.

    judge() ─┐                  ┌─ WorkerSlot ── worker process
    judge() ─┼─ waiting ─ share ┤
    judge() ─┘                  └─ WorkerSlot ── worker process

A verifier is user code, called with text of a policy that writes whatever is rewarded: it may raise, hang, use up the
memory, or call `sys.exit`. None of that harms this process, and none of it becomes a reward.
"""

import asyncio
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Raw

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.worker_slot import PendingVerdict, WorkerSlot

MAX_BATCH = 64
"""Inputs in one frame to a worker: enough that the pipe costs little, few enough that one that hangs delays few."""


class WorkerPool:
    """
    ``reward.workers`` worker processes that judge inputs.

    Example:
        async with WorkerPool(Reward(function="gsm8k")) as pool:
            verdict = await pool.judge(VerifierInput(completion="#### 4", answer="4"))
    """

    def __init__(self, reward: Reward) -> None:
        self._slots = [WorkerSlot(reward) for _ in range(reward.workers)]
        self._waiting: asyncio.Queue[PendingVerdict] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def __len__(self) -> int:
        """Number of workers."""
        return len(self._slots)

    @property
    def replaced(self) -> int:
        """Number of workers so far that hung or died."""
        return sum(slot.replaced for slot in self._slots)

    async def start(self) -> None:
        """Start all workers; raises `ConfigError`, and leaves none running, if a verifier cannot be loaded."""
        try:
            started = await asyncio.gather(*(slot.fill() for slot in self._slots), return_exceptions=True)
            for outcome in started:
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            await self.aclose()
            raise
        self._tasks = [asyncio.create_task(self._serve(slot)) for slot in self._slots]

    async def judge(self, inputs: VerifierInput) -> Verdict:
        """
        Judge one completion. Concurrent calls share frames to the workers.

        Raises:
            VerifierError: The verifier raised, hung, or returned no finite number, or its worker died; ``retryable``
                if another attempt may succeed.
        """
        if self._closed or not self._tasks:
            raise VerifierError(
                f"the reward pool {'was closed' if self._closed else 'was not started'}", retryable=True
            )
        try:
            encoded = Raw(msgspec.msgpack.encode(inputs))
        except UnicodeEncodeError as error:
            raise VerifierError(f"the verifier's input is no valid text: {error.reason} at {error.start}") from error
        pending = PendingVerdict(encoded, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(pending)
        return await pending.verdict

    async def aclose(self) -> None:
        """Kill every worker and the processes it started; fail all pending calls of `judge`. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(slot.clear() for slot in self._slots))
        while not self._waiting.empty():
            self._waiting.get_nowait().fail(_closed())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _serve(self, slot: WorkerSlot) -> None:
        while True:
            batch = await self._next_batch()
            try:
                await slot.judge(batch)
            finally:
                for pending in batch:
                    pending.fail(_closed())

    async def _next_batch(self) -> list[PendingVerdict]:
        """Take one slot's share of the waiting inputs, so that a slow verifier keeps all workers busy."""
        batch = [await self._waiting.get()]
        share = min(MAX_BATCH, -(-(self._waiting.qsize() + 1) // len(self._slots)))
        while len(batch) < share:
            batch.append(self._waiting.get_nowait())
        return [pending for pending in batch if not pending.verdict.done()]


def _closed() -> VerifierError:
    return VerifierError("the reward pool was closed before the verdict", retryable=True)
