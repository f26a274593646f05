"""
Trainer's actor: turns batches into published policy versions and checkpoints.

    Take(k) ─▶ Batch ─▶ fetch and check payloads ─▶ learner.train ─▶ Stepped
                 └ Take(k + 1) is sent, and its payloads are fetched, while step k trains
    every T steps: stage ─▶ Publishing ─▶ transfers, while the next step trains ─▶ Published

A resumed trainer starts from its checkpoint: it publishes the weights under the version they had, sends its last
`Stepped` messages again, and receives the same batches as before for the following steps.

Groups with a damaged trajectory are left out of their step, and named in `Stepped`. A step without any group left
changes no weights, and counts.

All computation runs in one thread, which keeps the event loop free for beats and transfers. A checkpoint's files are
written between two steps, into memory of the system as long as that has room, and completed by another thread.

Safe to run inside another process: no signal handler, no logging configuration; its threads end with `run`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.errors import LinkRefused
from asyncrl.failpoints import failpoint
from asyncrl.log import get_logger
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Beat, Drain, Draining, Ready, Reject, Stop, StoreValue, Wake
from asyncrl.messages.spool import Spools
from asyncrl.messages.supervisor import Evaluated, Stacks, StacksWanted
from asyncrl.messages.token_ids import token_ids_of
from asyncrl.messages.trainer import Batch, Commit, DamagedCheckpoint, Evaluating, Resumed, Shortened, Stepped, Work
from asyncrl.messages.weights import Abort, Published, Transfer, Upload
from asyncrl.messages.words import TRAINER_ACTIVITIES, Activity
from asyncrl.records.metrics import Sample
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.checkpoints.writer import CheckpointWriter
from asyncrl.trainer.loop.fetching import BATCHES_AHEAD, Batches, FetchedStep
from asyncrl.trainer.loop.publications import (
    DeviceTurns,
    Publications,
    TrainerProgress,
    compute_thread,
    told,
)
from asyncrl.trainer.ranks.rank_hub import NoOtherRanks, OtherRanks
from asyncrl.trainer.trainable import Sleepable, Trainable, WeightPublisher, WeightUploader
from asyncrl.weights.groups.group import CPU
from asyncrl.wire.files import CheckpointSender
from asyncrl.wire.handshake import Connection
from asyncrl.wire.occupancy import Occupancy
from asyncrl.wire.spools import ImageCache, PayloadClient
from asyncrl.workers.stacks import current_stacks

log = get_logger()
Result = TypeVar("Result")


class Start(Struct, frozen=True):
    """Progress that a trainer starts from: none for a new run, or that of a checkpoint."""

    step: int = 0
    """Optimizer steps done."""
    policy_version: int = 0
    checkpoint: str = ""
    """Path of the checkpoint; empty for a new run."""
    stepped: list[Stepped] = []
    """Reports of the last steps, which the broker may not have received."""
    damaged: list[DamagedCheckpoint] = []
    """Newer checkpoints, which were passed over."""


class TrainerActor:
    """
    Actor of the trainer's first rank.

    Args:
        publisher: Sends weights. Owned by the caller.
        uploader: Stores weights at the spool. Owned by the caller. None refuses to (for tests).
        sender: Copies checkpoints to the broker's machine; None if they are there.
        connection: Links after Hello and Welcome.
        layout_hash: Hash of the publisher's layout.
        checkpoints: Directory of the checkpoints.
        run_id: Identity of the run, for its checkpoints; empty if it is unknown.
        others: The further ranks, if there are any.
        device: Current device of the thread that computes.
        shared: The learner, if it shares its devices with rollouts.
        images: Pictures of earlier sessions; None starts without any.
        on_drain: Called when the broker asks this node to leave; the host then awaits `drain` and says Bye.
    """

    def __init__(
        self,
        config: Config,
        learner: Trainable,
        publisher: WeightPublisher,
        connection: Connection,
        *,
        tokenizer: Tokenizer,
        layout_hash: str,
        checkpoints: Path,
        start: Start = Start(),  # noqa: B008  immutable
        run_id: str = "",
        uploader: WeightUploader | None = None,
        sender: CheckpointSender | None = None,
        others: OtherRanks = NoOtherRanks(),  # noqa: B008  stateless
        device: torch.device = CPU,
        shared: Sleepable | None = None,
        images: ImageCache | None = None,
        on_drain: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._learner = learner
        self._publisher = publisher
        self._node = connection.identity.node
        self._link = connection.broker
        self._spools = connection.spools
        self._layout_hash = layout_hash
        self._checkpoints = CheckpointWriter(
            checkpoints,
            config.checkpoint,
            tokenizer=tokenizer,
            link=self._link,
            run_id=run_id,
            sender=sender,
            clock=clock,
        )
        self._occupancy = Occupancy[Activity](TRAINER_ACTIVITIES, clock)
        self._turns = DeviceTurns(
            self._link, shared, others, in_thread=self._in_thread, occupancy=self._occupancy, clock=clock
        )
        self._start = start
        self._num_steps = config.run.steps
        """Steps of the run, which may become fewer while it goes on."""
        self._ledger = 0, ""
        """Number of the ledger's records at the last batch, and their digest."""
        self._others = others
        self._device = device
        self._on_drain = on_drain
        self._token_ids = token_ids_of(learner)
        self._clock = clock
        self._progress = TrainerProgress()
        pictures = images or ImageCache()
        pictures.connect(connection.spools)
        self._batches = Batches(
            self._link,
            PayloadClient(connection.spools),
            pictures,
            learner=learner,
            token_ids=self._token_ids,
            config=config,
            others=others,
            occupancy=self._occupancy,
        )
        self._publications = Publications(
            self._link,
            publisher,
            uploader,
            learner=learner,
            others=others,
            newest=start.policy_version - 1,
            progress=self._progress,
            occupancy=self._occupancy,
            in_thread=self._in_thread,
        )
        self._stepped = deque(start.stepped, maxlen=max(config.checkpoint.every_steps, 1) + BATCHES_AHEAD)
        """Reports of the newest steps, saved in checkpoints: a broker that died may not have received them."""
        self._drain_began = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._num_saved = start.step
        """Steps in the newest checkpoint, which may still be being written."""
        self._draining: asyncio.Task[Literal[True]]
        self._compute: ThreadPoolExecutor
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """
        Train every step, then serve joining rollouts until the broker sends Stop.

        Raises:
            LinkRefused: The broker rejected this trainer.
            LinkReset: The broker restarted.
            LinkError: A spool did not answer.
        """
        async with compute_thread(self._device) as self._compute:
            with self._checkpoints:
                try:
                    async with asyncio.TaskGroup() as self._tasks:
                        await self._serve_and_train(self._tasks)
                except BaseExceptionGroup as group:
                    raise group.exceptions[0] from None

    async def _serve_and_train(self, tasks: asyncio.TaskGroup) -> None:
        self._draining = tasks.create_task(self._drain_began.wait())
        loops = (self._spools.run, self._publications.transfer, self._publications.upload, self._train)
        jobs = [tasks.create_task(loop()) for loop in loops]
        await self._serve()
        self._checkpoints.end_copies()
        self._batches.cancel()
        for task in (*jobs, self._draining):
            task.cancel()

    async def drain(self, deadline_s: float) -> bool:
        """
        Train to the end of a version, save a checkpoint, and train no further. False if that takes longer.

        A checkpoint has the weights of one version: with several steps per publish, the remaining ones are trained.
        """
        self._drain_began.set()
        self._publications.end()
        try:
            async with asyncio.timeout(deadline_s):
                await self._is_drained.wait()
        except TimeoutError:
            return False
        return True

    async def _drain_for_another(self) -> None:
        """Train to the end of a version, and save a checkpoint, because another machine of the trainer is to leave."""
        self._drain_began.set()
        self._publications.end()
        await self._is_drained.wait()
        await self._link.send(Draining())

    def heartbeat(self, lag_s: float) -> Beat:
        num_computed = self._learner.num_computed
        return Beat(
            lag_s,
            self._occupancy.seconds,
            self._progress.num_tokens,
            buckets=self._publisher.num_buckets,
            doing="" if num_computed is None else self._occupancy.current,
            progress=num_computed or 0,
        )

    def status(self) -> str:
        """Steps done, and the newest published version."""
        done = self._stepped[-1].step + 1 if self._stepped else self._start.step
        return f"step {done} of {self._num_steps}, v{self._publications.live}"

    def metrics(self) -> Iterator[Sample]:
        """Values of its metrics now, for a scrape."""
        yield Sample("asyncrl_trainer_policy_version", self._publications.live)
        yield from self._progress
        for activity, seconds in self._occupancy.seconds.items():
            yield Sample("asyncrl_trainer_seconds_total", seconds, {"activity": activity})

    # ── messages ────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        async for message in self._link:
            if isinstance(message, Stop):
                return
            if isinstance(message, StacksWanted):
                await self._link.send(Stacks(message.node, current_stacks()))
            else:
                self._handle(message)

    def _handle(self, message: Message) -> None:  # noqa: PLR0912  one for each message
        match message:
            case Batch():
                self._ledger = message.ledger_records, message.ledger_head
                self._batches.arrived(message)
            case Shortened(steps=steps):
                self._num_steps = steps
                self._batches.end_at(steps)
            case Transfer() | Upload():
                self._publications.request(message)
            case StoreValue():
                self._publisher.deliver(message)
            case Abort():
                self._publisher.abort(message)
            case Published(policy_version=version):
                self._publications.went_live(version)
            case Evaluating() | Evaluated():
                self._tasks.create_task(self._checkpoints.handle_evaluation(message))
            case Wake():
                self._turns.granted()
            case Spools(spools=spools):
                self._spools.update(spools)
                self._others.broadcast(message)
            case Drain(node=node) if node != self._node:
                self._tasks.create_task(self._drain_for_another())
            case Drain():
                self._on_drain()
            case Reject(reason=reason):
                raise LinkRefused(reason)
            case _:
                log.warning("message.unexpected", type=type(message).__name__)

    # ── steps ───────────────────────────────────────────────────────────────────────────────

    async def _train(self) -> None:
        start = self._start
        await self._link.send(Ready.of(self._token_ids, self._layout_hash))
        if start.checkpoint or start.damaged:
            await self._link.send(Resumed(start.step, start.checkpoint, start.damaged))
        await self._publications.publish(next_step=start.step)
        await self._turns.end()
        for stepped in start.stepped:
            await self._link.send(stepped)
        if start.checkpoint:
            await self._link.send(Commit(start.step - 1, start.checkpoint))
        if start.step < self._num_steps:
            self._batches.request(start.step, self._tasks)
        num_done, free_s = start.step, self._clock()
        while num_done < self._num_steps and await self._may_train(num_done):
            await self._step(num_done, free_s)
            num_done, free_s = num_done + 1, self._clock()
        if num_done > self._num_saved and self._ends_version(num_done):
            async with self._turns.turn():
                await self._checkpoint(num_done - 1)
        await self._drain_began.wait()
        await self._checkpoints.wait_idle()
        self._is_drained.set()

    async def _may_train(self, num_done: int) -> bool:
        """Wait for the next batch, or for `drain`. False if no further step is to be trained."""
        upcoming = self._batches.upcoming
        await asyncio.wait([upcoming, self._draining], return_when=asyncio.FIRST_COMPLETED)
        if num_done >= self._num_steps:
            return False
        if not self._ends_version(num_done):
            await asyncio.wait([upcoming])
            return True
        return not self._drain_began.is_set()

    def _ends_version(self, num_done: int) -> bool:
        """True if the weights after so many steps are those of a policy version."""
        return num_done % self._config.schedule.steps_per_publish == 0 or num_done == self._num_steps

    async def _step(self, step: int, free_s: float) -> None:
        """Train a step, which the trainer was free for from ``free_s`` on."""
        is_last = step + 1 == self._num_steps
        async with told(self._link, step, self._checkpoints.wait_idle):
            fetched = await self._batches.take()
            if not is_last:
                self._batches.request(step + 1, self._tasks)
            async with self._turns.turn():
                failpoint("trainer.batch_came")
                taken_s = self._clock()
                with self._occupancy.doing("training"):
                    metrics = await self._trained(step, fetched)
                failpoint("trainer.trained")
                trained_s = self._clock()
                version = self._publications.newest
                if is_last or _every(self._config.schedule.steps_per_publish, step):
                    await self._publications.publish(next_step=step + 1)
                wait_s, train_s, stage_s = taken_s - free_s, trained_s - taken_s, self._clock() - trained_s
                metrics = metrics | self._timing(wait_s, train_s, stage_s)
                self._progress.stepped(metrics)
                self._stepped.append(Stepped(step, version, metrics, fetched.refused))
                await self._link.send(self._stepped[-1])
                if is_last or _every(self._config.checkpoint.every_steps, step):
                    await self._checkpoint(step)

    def _trained(self, step: int, fetched: FetchedStep) -> Awaitable[dict[str, float]]:
        """Metrics of a step, which the learner of every rank trains."""
        left_out = sorted({refusal.unit.group_id for refusal in fetched.refused})
        is_published = step == self._start.step or step % self._config.schedule.steps_per_publish == 0
        version_before = self._publications.newest if is_published else None  # between two publishes
        self._learner.lr = lr = fetched.lr or self._config.trainer.lr
        self._others.broadcast(Work("train", step, version_before, left_out, lr))
        train, whole = self._learner.train, fetched.step.without(left_out)
        return asyncio.get_running_loop().run_in_executor(self._compute, train, whole, version_before)

    def _timing(self, wait_s: float, train_s: float, stage_s: float) -> dict[str, float]:
        # stage_s: wait for an earlier version to go live, and copy of the new one; about 0 without a publish.
        return {
            "train_s": train_s,
            "wait_s": wait_s,
            "stage_s": stage_s,
            "publish_s": self._progress.last_publish.seconds,
            "publish_bytes": float(self._progress.last_publish.num_bytes),
            **self._turns.metrics,
        }

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────

    async def _checkpoint(self, step: int) -> None:
        """Take the contents of a checkpoint, which is completed while the next steps train."""
        with self._occupancy.doing("checkpointing"):
            await self._checkpoints.begin(step + 1)
        self._num_saved = step + 1
        self._others.broadcast(Work("snapshot", step))
        snapshot = await self._in_thread("checkpointing", self._checkpoints.take, step + 1, self._learner.snapshot)
        self._checkpoints.write(
            self._tasks,
            step=step + 1,
            policy_version=self._publications.newest,
            stepped=self._stepped,
            ledger=self._ledger,
            snapshot=snapshot,
            others=partial(self._others.written, step),
        )

    async def _in_thread(self, activity: Activity, function: Callable[..., Result], *arguments: Any) -> Result:
        with self._occupancy.doing(activity):
            return await asyncio.get_running_loop().run_in_executor(self._compute, function, *arguments)


def _every(interval: int, step: int) -> bool:
    """True if ``step`` is the last of an interval; an interval of 0 never ends."""
    return bool(interval) and (step + 1) % interval == 0
