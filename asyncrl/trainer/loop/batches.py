"""
The batch of the next step: asked of the broker and fetched from spools while a step trains.

    Take(k + 1) ─▶ Batch ─▶ all ranks ─▶ payloads fetched and checked ─▶ refusals of all ranks ─▶ step k + 1
"""

import asyncio

from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.client.images import ImageCache
from asyncrl.client.payloads import PayloadClient
from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant
from asyncrl.log import get_logger
from asyncrl.messages.trainer import Batch, Refusal, Take
from asyncrl.messages.trajectory import RouteShape
from asyncrl.messages.words import Activity
from asyncrl.trainer.loop.fetching import FetchedStep, fetch_step, limits_of
from asyncrl.trainer.loop.step_failure import told
from asyncrl.trainer.ranks.rank_hub import OtherRanks
from asyncrl.trainer.trainable import Trainable

log = get_logger()

BATCHES_AHEAD = 2
"""Batches held at once, in training and next: the number of steps that can be trained without a broker."""


class Batches:
    """Batches of the first rank, which passes them on to the ``others``."""

    def __init__(
        self,
        link: Link,
        payloads: PayloadClient,
        images: ImageCache,
        *,
        learner: Trainable,
        vocab_size: int,
        config: Config,
        others: OtherRanks,
        occupancy: Occupancy[Activity],
    ) -> None:
        self._link = link
        self._payloads = payloads
        self._images = images
        self._learner = learner
        self._vocab_size = vocab_size
        self._routes: RouteShape | None = getattr(learner, "route_shape", None)
        self._config = config
        self._others = others
        self._occupancy = occupancy
        self._asked: dict[int, asyncio.Future[Batch]] = {}
        self._upcoming: asyncio.Task[FetchedStep] | None = None

    @property
    def upcoming(self) -> asyncio.Task[FetchedStep]:
        """Request and fetch of the next step; raises `BrokenInvariant` if none was begun."""
        if self._upcoming is None:
            raise BrokenInvariant("a step began before its batch was requested")
        return self._upcoming

    def request(self, step: int, tasks: asyncio.TaskGroup) -> None:
        """Ask for the batch of ``step``, and fetch it as a task of the group."""
        self._upcoming = tasks.create_task(self._batch(step))

    async def take(self) -> FetchedStep:
        """Wait for the step that was requested. It is not kept here: its arrays are freed once it is trained."""
        step = await self.upcoming
        self._upcoming = None
        return step

    def arrived(self, batch: Batch) -> None:
        """The broker has sent a batch; one that nobody waits for changes nothing."""
        if (future := self._asked.get(batch.step)) and not future.done():
            future.set_result(batch)

    def cancel(self) -> None:
        if self._upcoming:
            self._upcoming.cancel()

    async def _batch(self, step: int) -> FetchedStep:
        """Request and fetch a batch, with the refusals of all ranks."""
        future: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        self._asked[step] = future
        await self._link.send(Take(step))
        batch = await future
        del self._asked[step]
        self._others.broadcast(batch)
        async with told(self._link, step):
            own, found = await self._fetch(batch)
        refused = list({refusal.unit: refusal for refusal in found}.values())  # ranks that share a row say the same
        for refusal in refused:
            unit = refusal.unit
            at = {"step": step, "group_id": unit.group_id, "index": unit.index}
            log.warning("trajectory.refused", **at, reason=refusal.reason)
        return FetchedStep(own.step, refused, batch.lr)

    async def _fetch(self, batch: Batch) -> tuple[FetchedStep, list[Refusal]]:
        with self._occupancy.doing("fetching"):
            own = await fetch_step(
                batch,
                self._learner,
                self._payloads,
                images=self._images,
                rank=0,
                config=self._config,
                limits=limits_of(self._config, self._vocab_size, batch.step, self._routes),
            )
            return own, own.refused + await self._others.refused(batch.step)
