"""
Rank 0 of a trainer in this process, and the end of all waits for other ranks.

    load thread      form ─▶ all ranks have joined the hub ─▶ the store ─▶ RankGroup ─▶ collectives
    event loop       abort ─▶ ends each of these waits
    timer            ends the process if a library waits all the same
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from functools import partial

from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import RankDied
from asyncrl.node.trainer.place import RankPlace
from asyncrl.trainer.ranks.rank_hub import OtherRanks, RankHub
from asyncrl.trainer.ranks.ranks import RankGroup, Ranks, SingleRank
from asyncrl.weights.groups.connections import shut_down
from asyncrl.weights.groups.store import LinkStore

START_S = 120.0
"""Time for all ranks to start and import their libraries."""

Work = Callable[[Callable[[], Ranks], OtherRanks], Awaitable[None]]
"""The first rank's part: takes a function that forms the group, to be called on the thread that loads the model."""


def form_group(trainer: Trainer, store: LinkStore, place: RankPlace) -> RankGroup:
    """Join the group of all ranks; raises `RankDied` if one does not join, or the store is abandoned."""
    return RankGroup(
        store,
        rank=place.rank,
        size=place.size,
        timeout_s=trainer.collective_timeout_s,
        device_index=place.local_rank,
        kind=trainer.device,
        interface=place.interface,
        shard_size=trainer.shard_size,
        sequence_parallel=trainer.sequence_parallel,
    )


def end_waits(store: LinkStore, group: RankGroup | None, reason: str) -> None:
    """End all waits of this process for other ranks, also those in a collective of another thread."""
    store.abandon(reason)
    shut_down(store.values())
    if group:
        group.abort()


class FirstRank:
    """Rank 0 in this process: forms the group on the thread that loads the model, and can end its collectives."""

    def __init__(self, hub: RankHub, store: LinkStore, trainer: Trainer, place: RankPlace, work: Work) -> None:
        self._hub = hub
        self._store = store
        self._trainer = trainer
        self._place = place
        self._work = work
        self._group: RankGroup | None = None
        self._is_over = threading.Event()
        self._joining: Future[None] | None = None
        """Wait of the other thread for all ranks to join the hub."""

    async def run(self) -> None:
        """Do the work, and close the group after it."""
        loop = asyncio.get_running_loop()
        try:
            await self._work(partial(self._form, loop), self._hub)
        finally:
            if self._group:
                self._group.close()

    def abort(self, reason: str) -> None:
        """End all waits for other ranks, those in a collective of another thread too."""
        self._is_over.set()
        if self._joining:
            self._joining.cancel()
        end_waits(self._store, self._group, reason)

    def _form(self, loop: asyncio.AbstractEventLoop) -> Ranks:
        if self._place.size == 1:
            return SingleRank(self._trainer.device)
        self._joining = asyncio.run_coroutine_threadsafe(self._hub.wait_for_all(START_S), loop)
        try:
            if not self._is_over.is_set():  # Checked now, so that `abort` cancels the wait or is seen here.
                self._joining.result()
                self._group = form_group(self._trainer, self._store, self._place)
        except CancelledError:
            pass
        if self._group is None or self._is_over.is_set():
            raise RankDied("the group of ranks has ended while it was formed")
        return self._group
