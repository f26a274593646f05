"""
Policy versions of a trainer: copied to staging buffers, offered to the broker, and sent while the next steps train.

    publish ─▶ stage ─▶ Publishing ─▶ Transfer ─▶ Transferred ─▶ Published
                                  └─▶ Upload ─▶ Uploaded

Transfers therefore never see a half-updated model; the next version is copied while the last one is transferred.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.errors import TransferError
from asyncrl.log import get_logger
from asyncrl.messages.trainer import Work
from asyncrl.messages.weights import Publishing, Transfer, TransferFailed, Upload, Uploaded
from asyncrl.messages.words import Activity
from asyncrl.trainer.loop.progress import Progress
from asyncrl.trainer.ranks.rank_hub import OtherRanks
from asyncrl.trainer.trainable import Trainable, WeightPublisher, WeightUploader

log = get_logger()


class Publications:
    """
    Args:
        uploader: Stores weights at the spool; None refuses to.
        newest: Policy version before the first one to publish.
        in_thread: Runs a function on the thread that computes, given the activity that it counts as.
    """

    def __init__(
        self,
        link: Link,
        publisher: WeightPublisher,
        uploader: WeightUploader | None,
        *,
        learner: Trainable,
        others: OtherRanks,
        newest: int,
        progress: Progress,
        occupancy: Occupancy[Activity],
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._link = link
        self._publisher = publisher
        self._uploader = uploader
        self._learner = learner
        self._others = others
        self._progress = progress
        self._occupancy = occupancy
        self._in_thread = in_thread
        self.newest = newest
        """Newest version: offered to the broker, or to be published after a restart."""
        self.live = newest
        """Newest version that the broker has published."""
        self._went_live = asyncio.Event()
        self._has_ended = False
        self._transfers: asyncio.Queue[Transfer] = asyncio.Queue()
        self._uploads: asyncio.Queue[Upload] = asyncio.Queue()

    async def publish(self, *, next_step: int) -> None:
        """
        Copy the weights and offer them to the broker. Returns after the copy; transfers run while the next steps train.

        One version may wait while another is transferred; the next waits here until one of the two is live. It must not
        replace the waiting one: the broker may be about to request that, and the transfer would break for every member.
        (The broker requests the newest version offered, and so may skip one whose transfer broke.)
        """
        with self._occupancy.doing("publishing"):
            while self.live < self.newest - 1 and not self._has_ended:
                self._went_live.clear()
                await self._went_live.wait()
        if self._has_ended:
            self.newest += 1  # Published after the restart, from the checkpoint.
            return
        self._others.broadcast(Work("gather", next_step))
        await self._in_thread("publishing", self._publisher.stage, self.newest + 1, self._learner.named_weights())
        self.newest += 1
        reach("trainer.staged")
        await self._link.send(Publishing(self.newest, next_step))

    def went_live(self, version: int) -> None:
        self.live = max(self.live, version)
        self._went_live.set()

    def end(self) -> None:
        """Offer no further version, and wait for none."""
        self._has_ended = True
        self._went_live.set()

    def request(self, message: Transfer | Upload) -> None:
        """The broker asks for a version."""
        if isinstance(message, Transfer):
            self._transfers.put_nowait(message)
        else:
            self._uploads.put_nowait(message)

    async def transfer(self) -> None:
        """Run transfers one after the other, in the order requested by the broker. Never returns."""
        while True:
            transfer = await self._transfers.get()
            try:
                done = await self._publisher.transfer(transfer)
            except TransferError as error:
                log.warning("transfer.failed", policy_version=transfer.policy_version, reason=str(error))
                await self._link.send(TransferFailed(transfer.transfer_group, transfer.policy_version, str(error)))
            else:
                self._progress.published(done)
                await self._link.send(done)

    async def upload(self) -> None:
        """Put versions into the spool, one after the other, while the next steps train. Never returns."""
        while True:
            version = (await self._uploads.get()).policy_version
            if self._uploader is None:
                await self._link.send(Uploaded(version, 0.0, 0, problem="this trainer stores no weights"))
            else:
                await self._link.send(await self._uploader.upload(version))
                await self._uploader.upload_anchor()
