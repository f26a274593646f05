"""
The reward role: fetches stored trajectories, and sends their rewards to the broker.

    broker ── Grade ─▶ fetch payload ─▶ check ─▶ judge ─▶ Scored | Failed ─▶ broker
       ▲                 (spool)                (pool)                        │
       └────────────────────── Offer, as these are sent ◀─────────────────────┘

Each item of a `Grade` is judged independently, and answered with one `ScoredItem` or one `Failed`, unless the run
stops; at most ``max_open`` items are open. Rewards that are ready at the same moment share a `Scored`.

Safe to run inside another process: the actor installs no signal handler, does not touch logging or the event-loop
policy, starts no thread, and stops when its task is cancelled. Pool and connection are borrowed, not closed.
"""

import asyncio
import time
from collections.abc import Callable

from asyncrl.actor.failpoints import reach
from asyncrl.actor.occupancy import Occupancy
from asyncrl.client.connection import Connection
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import DecodeError, LinkClosed, VerifierError
from asyncrl.messages import Beat, Drain, Failed, Grade, GradeItem, Offer, Prompt, Scored, ScoredItem, Stop, Trajectory
from asyncrl.reward.verifier import VerifierInput, verifier_input
from asyncrl.reward.workers.pool import WorkerPool

MAX_OPEN = 256
"""Open trajectories: four full frames to the workers, about 5 MB of payloads."""


class _Stopped(Exception): ...  # cancels the tasks of the task group


class RewardActor:
    """
    The reward role, for one session with a broker and a spool.

    Args:
        on_drain: Called when the broker asks this node to leave; other nodes judge its open items.
        max_open: Most items that are open at once, which is the number of credits offered.
    """

    def __init__(
        self,
        *,
        pool: WorkerPool,
        connection: Connection,
        on_drain: Callable[[], None] | None = None,
        max_open: int = MAX_OPEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._broker = connection.broker
        self._on_drain = on_drain
        self._payloads = PayloadClient(connection.spool)
        self._max_open = max_open
        self._occupancy = Occupancy(clock)
        self._offered = 0
        self._settled = 0
        self._scored: list[ScoredItem] = []
        self._has_scored = asyncio.Event()

    def beat(self, lag_s: float) -> Beat:
        return Beat(lag_s, self._occupancy.busy_s, self._occupancy.wait_s)

    async def run(self) -> None:
        """
        Serve until the broker sends `Stop` or its link is closed; open items are dropped then.

        Raises:
            LinkReset: The broker or the spool has restarted: make new links and a new actor.
            LinkError: The link to the spool is closed.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._payloads.run())
                tasks.create_task(self._send_scored())
                await self._listen(tasks)
                raise _Stopped
        except ExceptionGroup as errors:
            if failed := errors.split((_Stopped, LinkClosed))[1]:
                raise failed.exceptions[0] from failed

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        await self._offer()
        while True:
            message = await self._broker.receive()
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
            answer = await self._judge(prompt, item)
        finally:
            self._occupancy.end()
        if isinstance(answer, ScoredItem):
            reach("reward.judged")
            self._scored.append(answer)
            self._has_scored.set()
            return
        await self._broker.send(answer)
        self._settled += 1
        await self._offer()

    async def _judge(self, prompt: Prompt, item: GradeItem) -> ScoredItem | Failed:
        try:
            trajectory = await self._payloads.fetch(item.ref)
            if trajectory.unit != item.unit:
                raise VerifierError(f"the payload of {item.unit} is one of {trajectory.unit}")
            verdict = await self._pool.judge(input_of(prompt, trajectory))
        except DecodeError as error:  # retryable: the trajectory may be read or sampled again
            return Failed(item.unit, item.lease_id, "reward", str(error), retryable=True)
        except VerifierError as error:
            return Failed(item.unit, item.lease_id, "reward", str(error), error.retryable)
        return ScoredItem(item.unit, verdict.reward, verdict.metrics, item.lease_id, verdict.answer)

    async def _send_scored(self) -> None:
        """Send all rewards that are ready whenever this task runs."""
        while True:
            await self._has_scored.wait()
            self._has_scored.clear()
            scored, self._scored = self._scored, []
            await self._broker.send(Scored(scored))
            self._settled += len(scored)
            await self._offer()

    async def _offer(self) -> None:
        """Offer credits once a quarter of them is free: few messages, and the broker never runs out first."""
        limit = self._settled + self._max_open
        if limit - self._offered >= max(1, self._max_open // 4):
            self._offered = limit
            await self._broker.send(Offer(limit))


def input_of(prompt: Prompt, trajectory: Trajectory) -> VerifierInput:
    num_tokens = len(trajectory.completion_ids) // 4  # int32
    return verifier_input(prompt, trajectory.text, finish_reason=trajectory.finish_reason, num_tokens=num_tokens)
