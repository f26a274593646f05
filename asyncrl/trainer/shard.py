"""
Further rank of the trainer: holds a shard of the model, and does what the first rank tells it to do.

    rank 0 ── Batch, Work ─▶ shard ── Fetch ─▶ spool          each rank fetches only the trajectories it trains
       └────── collectives ────┘

It does not know the broker: only the first rank publishes, commits and reports. The first rank announces each
collective when it begins it, so no rank waits inside a collective for something unbounded, such as a batch.

Safe to run inside another process, like `TrainerActor`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import LinkClosed
from asyncrl.messages import Batch, Beat, Stop, Work
from asyncrl.trainer.fetching import fetch_step
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import Step

Result = TypeVar("Result")


class ShardActor:
    """Actor of one further rank, 1 or higher. ``link`` goes to the first rank, after Hello and Welcome."""

    def __init__(self, learner: Learner, rank: int, group_size: int, link: Link, spool: Link) -> None:
        self._learner = learner
        self._rank = rank
        self._group_size = group_size
        self._link = link
        self._payloads = PayloadClient(spool)
        self._occupancy = Occupancy()
        self._steps: dict[int, asyncio.Task[Step]] = {}
        self._work: asyncio.Queue[Work] = asyncio.Queue()
        self._compute: ThreadPoolExecutor

    async def run(self) -> None:
        """
        Work until the first rank sends Stop or closes the link.

        Raises:
            LinkError, DecodeError: The spool did not answer, or lost a trajectory of a batch.
            RankDied: Another rank is gone.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="trainer-compute") as self._compute:
            try:
                async with asyncio.TaskGroup() as tasks:
                    jobs = [tasks.create_task(job()) for job in (self._payloads.run, self._work_in_order)]
                    await self._receive(tasks)
                    for task in (*jobs, *self._steps.values()):
                        task.cancel()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None

    def beat(self, lag_s: float) -> Beat:
        return Beat(lag_s, self._occupancy.busy_s, self._occupancy.wait_s)

    async def _receive(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                message = await self._link.receive()
            except LinkClosed:
                return
            match message:
                case Batch():
                    fetching = fetch_step(
                        message, self._learner, self._payloads, rank=self._rank, group_size=self._group_size
                    )
                    self._steps[message.step] = tasks.create_task(fetching)
                case Work():
                    self._work.put_nowait(message)
                case Stop():
                    return

    async def _work_in_order(self) -> None:
        while True:
            work = await self._work.get()
            match work.kind:
                case "train":
                    step = await self._steps.pop(work.step)
                    await self._in_thread(lambda: self._learner.train(step, work.policy_version))  # noqa: B023  awaited
                case "gather":
                    await self._in_thread(self._learner.gather_weights)
                case "snapshot":
                    await self._in_thread(self._learner.snapshot)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        self._occupancy.begin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compute, function)
        finally:
            self._occupancy.end()
