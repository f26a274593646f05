"""
A further rank of the trainer: it holds a share of the model, and does what the first rank says.

    rank 0 ── Batch, Work ─▶ shard ── Fetch ─▶ spool          each rank fetches what it trains, and no more
       └────── collectives ────┘

It knows no broker: who publishes, commits and reports is the first rank. It is told of every collective when the first
rank begins it, so that nobody waits in one for something that may take for ever, such as rollouts that have to come.

Safe to run inside someone else's process, as the trainer's actor is.
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
    """
    One rank.

    Args:
        learner: This rank's part of it.
        rank: From 1.
        group_size: Trajectories of a prompt to train on.
        link: To the first rank, after Hello and Welcome.
        spool: To the spool.
    """

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
        Work until the first rank says Stop, or is gone.

        Raises:
            LinkError: The spool did not answer.
            DecodeError: The spool lost a trajectory of a batch.
            RankDied: Another rank is gone.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="trainer-compute") as self._compute:
            try:
                async with asyncio.TaskGroup() as tasks:
                    jobs = [tasks.create_task(job()) for job in (self._payloads.run, self._obey)]
                    await self._listen(tasks)
                    for task in (*jobs, *self._steps.values()):
                        task.cancel()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None

    def beat(self, lag_s: float) -> Beat:
        """A sign of life, with running totals."""
        return Beat(lag_s, self._occupancy.busy_s, self._occupancy.wait_s)

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
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

    async def _obey(self) -> None:
        """One thing after the other, in the order told."""
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
