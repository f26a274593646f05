"""
Turns stored trajectories into verdicts.

    broker ── Grade ─▶ fetch payload ─▶ check ─▶ judge ─▶ Scored | Failed ─▶ broker
       ▲                 (spool)                (pool)                        │
       └────────────────────────── Offer, as these settle ◀───────────────────┘

Every item of a `Grade` is judged by itself, and answered with one verdict or one `Failed`, unless the run stops; at
most ``max_in_hand`` are open. Verdicts that come at the same moment travel together.

Safe to run inside someone else's process: it installs no signal handler, touches no logging configuration or event-loop
policy, starts no thread, and stops when its task is cancelled. Pool and links are borrowed: who made them closes them.
"""

import asyncio
import time
from collections.abc import Callable

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import DecodeError, LinkClosed, VerifierError
from asyncrl.messages import Beat, Drain, Failed, Grade, GradeItem, Offer, Prompt, Scored, ScoredItem, Stop, Trajectory
from asyncrl.reward.verifier import VerifierInput, to_judge
from asyncrl.reward.workers.pool import WorkerPool

MAX_IN_HAND = 256
"""Trajectories in hand at once: four full frames to the workers, about 5 MB of payloads."""


class _Stopped(Exception):
    """Leaves the task group, and with it everything in hand."""


class RewardActor:
    """
    The reward role, for one session with a broker and a spool.

    Args:
        pool: Started.
        link: To the broker, greeted already.
        spool: To the spool that serves this node, greeted already.
        on_drain: Called when the broker asks this node to leave: whatever it has in hand is judged elsewhere.
        max_in_hand: Trajectories in hand at once; so many credits are offered.
        clock: Seconds, for beats.
    """

    def __init__(
        self,
        *,
        pool: WorkerPool,
        link: Link,
        spool: Link,
        on_drain: Callable[[], None] | None = None,
        max_in_hand: int = MAX_IN_HAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._link = link
        self._on_drain = on_drain
        self._payloads = PayloadClient(spool)
        self._max_in_hand = max_in_hand
        self._occupancy = Occupancy(clock)
        self._offered = 0
        self._settled = 0
        self._verdicts: list[ScoredItem] = []
        self._has_verdicts = asyncio.Event()

    def beat(self, lag_s: float) -> Beat:
        """A sign of life, with running totals."""
        return Beat(lag_s, self._occupancy.busy_s, self._occupancy.wait_s)

    async def run(self) -> None:
        """
        Serve until the broker says `Stop`, or its link is closed; what is in hand then is dropped.

        Raises:
            LinkReset: The broker or the spool has restarted: make new links, and a new actor.
            LinkError: The link to the spool is closed.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._payloads.run())
                tasks.create_task(self._report())
                await self._listen(tasks)
                raise _Stopped
        except ExceptionGroup as errors:
            if failed := errors.split((_Stopped, LinkClosed))[1]:
                raise failed.exceptions[0] from failed

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        await self._offer()
        while True:
            message = await self._link.receive()
            match message:
                case Grade(prompt=prompt, items=items):
                    for item in items:
                        tasks.create_task(self._grade(prompt, item))
                case Drain() if self._on_drain:
                    self._on_drain()
                case Stop():
                    return

    async def _grade(self, prompt: Prompt, item: GradeItem) -> None:
        self._occupancy.begin()
        try:
            answer = await self._answer(prompt, item)
        finally:
            self._occupancy.end()
        if isinstance(answer, ScoredItem):
            reach("reward.judged")
            self._verdicts.append(answer)
            self._has_verdicts.set()
            return
        await self._link.send(answer)
        self._settled += 1
        await self._offer()

    async def _answer(self, prompt: Prompt, item: GradeItem) -> ScoredItem | Failed:
        """A verdict, or why there is none."""
        try:
            trajectory = await self._payloads.fetch(item.ref)
            if trajectory.unit != item.unit:
                raise VerifierError(f"the payload of {item.unit} is one of {trajectory.unit}")
            verdict = await self._pool.judge(sample_of(prompt, trajectory))
        except DecodeError as error:  # Another try may sample, or read, it anew.
            return Failed(item.unit, item.lease_id, "reward", str(error), retryable=True)
        except VerifierError as error:
            return Failed(item.unit, item.lease_id, "reward", str(error), error.retryable)
        return ScoredItem(item.unit, verdict.reward, verdict.metrics, item.lease_id, verdict.answer)

    async def _report(self) -> None:
        """Send the verdicts that have gathered by the time this gets its turn."""
        while True:
            await self._has_verdicts.wait()
            self._has_verdicts.clear()
            verdicts, self._verdicts = self._verdicts, []
            await self._link.send(Scored(verdicts))
            self._settled += len(verdicts)
            await self._offer()

    async def _offer(self) -> None:
        """Offer again once a quarter of the credits is free: fewer messages, and the broker never runs out first."""
        limit = self._settled + self._max_in_hand
        if limit - self._offered >= max(1, self._max_in_hand // 4):
            self._offered = limit
            await self._link.send(Offer(limit))


def sample_of(prompt: Prompt, trajectory: Trajectory) -> VerifierInput:
    """What a verifier is given of a trajectory."""
    num_tokens = len(trajectory.completion_ids) // 4
    return to_judge(prompt, trajectory.text, finish_reason=trajectory.finish_reason, num_tokens=num_tokens)
