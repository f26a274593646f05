"""
Further rank of the trainer: holds a shard of the model, and does what the first rank tells it to do.

    rank 0 ── Batch, Work ─▶ shard ── Fetch ─▶ spool          each rank fetches only the trajectories it trains
       │◀─ Checked, PartWritten ┤
       └────── collectives ────┘

It does not know the broker: only the first rank publishes, commits and reports. The first rank announces each
collective when it begins it, so no rank waits inside a collective for something unbounded, such as a batch. It trains a
step only once each rank has checked its trajectories, and tells all of them which groups to leave out.

Safe to run inside another process, like `TrainerActor`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant, LinkClosed
from asyncrl.failpoints import failpoint
from asyncrl.files.checkpoints import FileEntry
from asyncrl.messages.session import Beat, Stop
from asyncrl.messages.spool import Spools
from asyncrl.messages.token_ids import token_ids_of
from asyncrl.messages.trainer import Batch, Checked, PartWritten, Work
from asyncrl.messages.trajectory import RouteShape
from asyncrl.messages.words import Activity
from asyncrl.records.formatting import nth
from asyncrl.records.metrics import Sample
from asyncrl.trainer.checkpoints.checkpoint import take, write_part
from asyncrl.trainer.checkpoints.snapshot import Snapshot
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.loop.fetching import fetch_step, limits_of
from asyncrl.trainer.loop.publications import OF_OTHERS, compute_thread, reason_of
from asyncrl.trainer.packing.step import TrainingStep
from asyncrl.weights.groups.group import CPU
from asyncrl.wire.link import Link
from asyncrl.wire.occupancy import Occupancy
from asyncrl.wire.spools import ImageCache, PayloadClient, SpoolLinks

Result = TypeVar("Result")


class RankActor:
    """
    Actor of one further rank, 1 or higher.

    Args:
        link: Goes to the first rank, after Hello and Welcome.
        checkpoints: Folder of the run's checkpoints on this machine.
        device: Current device of the thread that computes.
        on_failure: Called with the error that ends this rank, before the end of its thread is awaited: the thread may
            be in a collective with a rank that is gone.
    """

    def __init__(
        self,
        learner: Learner,
        rank: int,
        config: Config,
        link: Link,
        spools: SpoolLinks,
        *,
        checkpoints: Path,
        device: torch.device = CPU,
        on_failure: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self._learner = learner
        self._rank = rank
        self._config = config
        self._token_ids = token_ids_of(learner)
        self._routes: RouteShape | None = getattr(learner, "route_shape", None)
        self._link = link
        self._spools = spools
        self._device = device
        self._on_failure = on_failure
        self._payloads = PayloadClient(spools)
        self._images = ImageCache(spools)
        self._occupancy = Occupancy[Activity](("training",))
        self._steps: dict[int, asyncio.Task[TrainingStep | None]] = {}
        self._work: asyncio.Queue[Work] = asyncio.Queue()
        self._checkpoints = checkpoints
        self._compute: ThreadPoolExecutor

    async def run(self) -> None:
        """
        Work until the first rank sends Stop or closes the link.

        Raises:
            LinkError: A spool did not answer.
            RankDied: Another rank is gone.
        """
        async with compute_thread(self._device) as self._compute:
            try:
                async with asyncio.TaskGroup() as tasks:
                    jobs = [tasks.create_task(job) for job in (self._spools.run(), self._work_in_order(tasks))]
                    await self._receive(tasks)
                    for task in (*jobs, *self._steps.values()):
                        task.cancel()
            except BaseExceptionGroup as group:
                self._on_failure(group.exceptions[0])
                raise group.exceptions[0] from None

    def heartbeat(self, lag_s: float) -> Beat:
        return Beat(
            lag_s, self._occupancy.seconds, doing=self._occupancy.current, progress=self._learner.num_computed or 0
        )

    def status(self) -> str:
        return f"rank {self._rank}"

    def metrics(self) -> tuple[Sample, ...]:
        """None: the first rank has those of the trainer."""
        return ()

    async def _receive(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                message = await self._link.receive()
            except LinkClosed:
                return
            match message:
                case Batch():
                    self._steps[message.step] = tasks.create_task(self._fetch(message))
                case Spools(spools=spools):
                    self._spools.update(spools)
                case Work():
                    self._work.put_nowait(message)
                case Stop():
                    return

    async def _fetch(self, batch: Batch) -> TrainingStep | None:
        """Part of a step for this rank; None if it is impossible, which ends the trainer after the step before."""
        try:
            fetched = await fetch_step(
                batch,
                self._learner,
                self._payloads,
                images=self._images,
                rank=self._rank,
                config=self._config,
                limits=limits_of(self._config, self._token_ids, batch.step, self._routes),
            )
        except OF_OTHERS:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the first rank raises it
            await self._link.send(Checked(batch.step, [], f"rank {self._rank}: {reason_of(error)}"))
            return None
        await self._link.send(Checked(batch.step, fetched.refused))
        return fetched.step

    async def _work_in_order(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            work = await self._work.get()
            match work.kind:
                case "train":
                    failpoint("shard.training")
                    if (fetched := await self._steps.pop(work.step)) is None:
                        raise BrokenInvariant(f"step {nth(work.step)} began although this rank called it impossible")
                    step = fetched.without(work.left_out)
                    if work.lr is not None:
                        self._learner.lr = work.lr
                    await self._in_thread(lambda: self._learner.train(step, work.policy_version))  # noqa: B023  awaited
                case "gather":
                    failpoint("shard.gathering")
                    await self._in_thread(self._learner.gather_weights)
                case "sleep":
                    await self._in_thread(self._learner.sleep)
                case "wake":
                    await self._in_thread(self._learner.wake)
                case "snapshot":
                    failpoint("shard.copying")
                    taking = partial(take, self._checkpoints, work.step + 1, self._learner.snapshot)
                    snapshot = await self._in_thread(taking)
                    tasks.create_task(self._write(work.step, snapshot))

    async def _write(self, step: int, snapshot: Snapshot) -> None:
        """Complete this rank's part of a checkpoint while the next steps train."""
        files: dict[str, FileEntry] = {}
        if snapshot.part.index < snapshot.part.count:
            files = await asyncio.to_thread(write_part, self._checkpoints, step + 1, snapshot)
        await self._link.send(PartWritten(step, files))

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        with self._occupancy.doing("training"):
            return await asyncio.get_running_loop().run_in_executor(self._compute, function)
