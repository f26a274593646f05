"""
Work of a trainer beside its steps: it publishes versions, reports progress and failures, and shares devices with
rollouts.

Policy versions of a trainer: copied to staging buffers, offered to the broker, and sent while the next steps train.

    publish ─▶ stage ─▶ Publishing ─▶ Transfer ─▶ Transferred ─▶ Published
                                  └─▶ Upload ─▶ Uploaded

Transfers therefore never see a half-updated model; the next version is copied while the last one is transferred.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import torch

from asyncrl.errors import LinkError, RankDied, SpoolAway, TransferError
from asyncrl.failpoints import failpoint
from asyncrl.log import get_logger
from asyncrl.messages.session import AskTurn, Asleep
from asyncrl.messages.trainer import StepFailed, Work
from asyncrl.messages.weights import Publishing, Transfer, TransferFailed, Transferred, Upload, Uploaded
from asyncrl.messages.words import Activity
from asyncrl.records.metrics import Sample
from asyncrl.trainer.ranks.rank_hub import OtherRanks
from asyncrl.trainer.trainable import Sleepable, Trainable, WeightPublisher, WeightUploader
from asyncrl.weights.groups.device import device_thread
from asyncrl.wire.link import Link
from asyncrl.wire.occupancy import Occupancy

# ── progress ──────────────────────────────────────────────────────────────────────────────────
# Work of a trainer since it started, for heartbeats, lines of metrics, and scrapes.

OF_LAST_STEP = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
"""Metric of each value of a step."""


class TrainerProgress:
    """Running totals, and the last step. Iterating gives the samples of a scrape."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """Tokens trained."""
        self.last_publish = Transferred(0, -1, 0.0, 0)
        """The last transfer of weights, which took no time if there was none."""
        self._num_steps = 0
        self._last_step: Mapping[str, float] = {}
        self._num_publishes = 0
        self._publish_s = 0.0
        self._publish_bytes = 0

    def stepped(self, metrics: Mapping[str, float]) -> None:
        """Count a finished step; ``metrics`` are those of its `Stepped`."""
        self._num_steps += 1
        self.num_tokens += int(metrics["num_tokens"])
        self._last_step = metrics

    def published(self, done: Transferred) -> None:
        """A transfer of weights has ended well."""
        self.last_publish = done
        self._num_publishes += 1
        self._publish_s += done.seconds
        self._publish_bytes += done.num_bytes

    def __iter__(self) -> Iterator[Sample]:
        yield Sample("asyncrl_trainer_steps_total", self._num_steps)
        yield Sample("asyncrl_trainer_tokens_total", self.num_tokens)
        for key, name in OF_LAST_STEP.items():
            if key in self._last_step:
                yield Sample(f"asyncrl_trainer_{name}", self._last_step[key])
        yield Sample("asyncrl_trainer_publishes_total", self._num_publishes)
        yield Sample("asyncrl_trainer_publish_bytes_total", self._publish_bytes)
        yield Sample("asyncrl_trainer_publish_seconds_total", self._publish_s)


# ── publications ──────────────────────────────────────────────────────────────────────────────

log = get_logger()


class Publications:
    """
    Publishes policy versions: stages them, and transfers or uploads them as the broker asks.

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
        progress: TrainerProgress,
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
        failpoint("trainer.staged")
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


# ── step failure ──────────────────────────────────────────────────────────────────────────────
# Failures of a step that another start of the trainer would meet again, told to the broker before this one ends.

OF_OTHERS = (LinkError, RankDied, SpoolAway)
"""Errors that say nothing about the step: another process is gone, or does not answer."""
REASON_CHARS = 2048


@asynccontextmanager
async def told(link: Link, step: int, checkpoint: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """
    Tell the broker of an error of the block, which is work on ``step``, and raise it.

    Before, wait for the ``checkpoint`` that is being written: the steps in it are to be trained once.
    """
    try:
        yield
    except OF_OTHERS:
        raise
    except Exception as error:
        await checkpoint()
        with suppress(LinkError):
            await link.send(StepFailed(step, reason_of(error)))
        raise


def reason_of(error: Exception) -> str:
    """Kind and words of an error, for a message."""
    return f"{type(error).__name__}: {error}"[:REASON_CHARS]


# ── turn ──────────────────────────────────────────────────────────────────────────────────────
# Turns of a trainer at devices that it shares with rollouts.
#
#     AskTurn ─▶ … ─▶ Wake ─▶ memory comes to the devices ─▶ step, publish, checkpoint ─▶ memory goes ─▶ Asleep

MOVING: Activity = "waiting for the devices"


class DeviceTurns:
    """
    Turns of a trainer at devices that rollouts share: asks for them, waits, and measures.

    Args:
        learner: Takes and leaves the devices, with the ``others``; None if they are the trainer's own: turns then cost
            nothing.
        in_thread: Runs a function on the thread that computes, given the activity that it counts as.
        occupancy: Counts the time between the request and the grant.
    """

    def __init__(
        self,
        link: Link,
        learner: Sleepable | None,
        others: OtherRanks,
        *,
        in_thread: Callable[..., Awaitable[Any]],
        occupancy: Occupancy[Activity],
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self._learner = learner
        self._others = others
        self._in_thread = in_thread
        self._occupancy = occupancy
        self._clock = clock
        self._granted = asyncio.Event()
        self._left_s = clock()
        """Clock time at which the last turn ended."""
        self._metrics: dict[str, float] = {}

    @property
    def metrics(self) -> Mapping[str, float]:
        """
        Metrics of the last turn, and of the time before it; empty if the devices are the trainer's own.

        ``turn_rollout_s``: from the end of the turn before to the grant. ``turn_wait_s``: of it from the request.
        ``turn_s``: from the grant to the end. ``turn_moved_s``: of it to move memory. ``turn_bytes``: moved to host
        memory at the end.
        """
        return self._metrics

    def granted(self) -> None:
        """The broker has granted the turn that was asked for."""
        self._granted.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Use the devices for the time of the block."""
        if self._learner is None:
            yield
            return
        asked_s = self._clock()
        await self._link.send(AskTurn())
        with self._occupancy.doing(MOVING):
            await self._granted.wait()
        self._granted.clear()
        granted_s, rollout_s = self._clock(), self._clock() - self._left_s
        self._others.broadcast(Work("wake", 0))
        await self._in_thread(MOVING, self._learner.wake)
        failpoint("trainer.woken")
        taken_s = self._clock()
        yield
        leaving_s = self._clock()
        num_bytes = await self.end()
        self._metrics = {
            "turn_rollout_s": rollout_s,
            "turn_wait_s": granted_s - asked_s,
            "turn_s": self._left_s - granted_s,
            "turn_moved_s": (taken_s - granted_s) + (self._left_s - leaving_s),
            "turn_bytes": float(num_bytes),
        }

    async def end(self) -> int:
        """End the turn, or the first one, in which the model was loaded. Returns the number of bytes moved."""
        if self._learner is None:
            return 0
        began_s = self._clock()
        self._others.broadcast(Work("sleep", 0))
        num_bytes: int = await self._in_thread(MOVING, self._learner.sleep)
        failpoint("trainer.asleep")
        self._left_s = self._clock()
        await self._link.send(Asleep(self._left_s - began_s, num_bytes))
        return num_bytes


# ── compute ───────────────────────────────────────────────────────────────────────────────────
# The thread of a trainer's computation.
#
#     event loop ── run_in_executor ─▶ thread, on its device      one call at a time
#         └─ beats, messages, the end of collectives              also while the thread ends


@asynccontextmanager
async def compute_thread(device: torch.device) -> AsyncIterator[ThreadPoolExecutor]:
    """
    A thread whose current device is ``device``, until the block and its last call end.

    Meanwhile the event loop goes on: the thread may be in a collective that only the loop can abort.
    """
    thread = device_thread(device, "trainer-compute")
    try:
        yield thread
    finally:
        try:
            await _until_idle(thread)
        finally:
            thread.shutdown()


async def _until_idle(thread: ThreadPoolExecutor) -> None:
    last, cancelled = asyncio.get_running_loop().run_in_executor(thread, int), None
    while not last.done():
        try:
            await asyncio.wait([last])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
