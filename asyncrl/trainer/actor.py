"""
Turns batches into published versions.

    Take(k) ─▶ Batch ─▶ fetch payloads ─▶ learner.train ─▶ Stepped
                 └ Take(k + 1) is asked, and its payloads fetched, while step k trains
    every T steps: stage ─▶ Publishing ─▶ transfers, while the next step trains ─▶ Published

A trainer that starts again begins where its checkpoint ends: it publishes those weights under the version they had,
says again what its last steps were, and is given the same batches as before for the steps that follow.

The compute runs in one thread, so that the loop stays free for beats and transfers. Weights are copied to staging
before they travel, so a transfer never sees a step half done; the next version is copied while the last one travels.
A checkpoint is copied too, and written by a thread of its own.

Safe to run inside someone else's process: no signal handler, no logging configuration; its threads end with `run`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.client.payloads import PayloadClient
from asyncrl.config.sections import Config
from asyncrl.errors import BrokenInvariant, LinkRefused, TransferError
from asyncrl.messages import (
    Batch,
    Beat,
    Commit,
    Evaluated,
    Evaluating,
    Message,
    Published,
    Publishing,
    Ready,
    Reject,
    Stepped,
    Stop,
    StoreValue,
    Take,
    Transfer,
    TransferFailed,
    Work,
)
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.checkpoints.writer import CheckpointWriter
from asyncrl.trainer.fetching import fetch_step
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import Step
from asyncrl.weights.publish import Publisher

log = structlog.get_logger()
Result = TypeVar("Result")

BATCHES_AHEAD = 2
"""Batches here at once: the one in training, and the next. So many steps can be taken without a broker."""


class _Times(Struct, frozen=True):
    """Where the seconds of one step went."""

    wait_s: float
    """For its batch."""
    train_s: float
    stage_s: float
    """For the version before the last to be live, and for the copy of the new one; 0 if this step publishes nothing."""


class Start(Struct, frozen=True):
    """Where a trainer begins: a new run, or what a checkpoint contains."""

    step: int = 0
    """Steps done."""
    policy_version: int = 0
    """Of the weights."""
    checkpoint: str = ""
    """Where they came from; empty for a new run."""
    stepped: list[Stepped] = []
    """What was said of the last of these steps, and may not have been heard."""


class TrainerActor:
    """
    The trainer.

    Args:
        learner: The policy and its optimizer.
        publisher: Sends weights. Owned by the caller.
        link: To the broker, after Hello and Welcome.
        spool: To the spool.
        tokenizer: Goes into checkpoints.
        layout_hash: Of the publisher's plan.
        checkpoints: Folder they go to.
        start: What the learner has done already.
        tell: Says something to the other ranks, if there are any.
    """

    def __init__(
        self,
        config: Config,
        learner: Learner,
        publisher: Publisher,
        link: Link,
        spool: Link,
        *,
        tokenizer: Tokenizer,
        layout_hash: str,
        checkpoints: Path,
        start: Start = Start(),  # noqa: B008  immutable
        tell: Callable[[Batch | Work], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._learner = learner
        self._publisher = publisher
        self._link = link
        self._payloads = PayloadClient(spool)
        self._layout_hash = layout_hash
        self._checkpoints = CheckpointWriter(
            checkpoints, config.checkpoint, tokenizer=tokenizer, link=link, clock=clock
        )
        self._start = start
        self._tell = tell
        self._clock = clock
        self._occupancy = Occupancy(clock)
        self._batches: dict[int, asyncio.Future[Batch]] = {}
        self._transfers: asyncio.Queue[Transfer] = asyncio.Queue()
        self._upcoming: asyncio.Task[Step] | None = None
        """The batch of the next step, on its way."""
        self._version = start.policy_version - 1
        """The newest staged."""
        self._live_version = self._version
        self._went_live = asyncio.Event()
        self._stepped = deque(start.stepped, maxlen=max(config.checkpoint.every_steps, 1) + BATCHES_AHEAD)
        """The newest: all that a checkpoint may contain and the broker, if it died, may not have heard."""
        self._num_tokens = 0
        self._publish_s = 0.0
        self._publish_bytes = 0
        self._compute: ThreadPoolExecutor
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """
        Train every step, then serve joiners until the broker says Stop.

        Raises:
            LinkRefused: The broker rejected us.
            LinkReset: The broker restarted.
            LinkError: The spool did not answer.
            DecodeError: The spool lost a trajectory of a batch.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="trainer-compute") as self._compute, self._checkpoints:
            try:
                async with asyncio.TaskGroup() as self._tasks:
                    tasks = self._tasks
                    jobs = [tasks.create_task(job()) for job in (self._payloads.run, self._transfer, self._train)]
                    await self._serve()
                    for task in filter(None, (*jobs, self._upcoming)):
                        task.cancel()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None

    def beat(self, lag_s: float) -> Beat:
        """A sign of life, with running totals."""
        return Beat(lag_s, self._occupancy.busy_s, self._occupancy.wait_s, self._num_tokens)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        async for message in self._link:
            if isinstance(message, Stop):
                return
            self._take(message)

    def _take(self, message: Message) -> None:
        match message:
            case Batch(step=step):
                if (future := self._batches.get(step)) and not future.done():
                    future.set_result(message)
            case Transfer():
                self._transfers.put_nowait(message)
            case StoreValue():
                self._publisher.deliver(message)
            case Published(policy_version=version):
                self._live_version = max(self._live_version, version)
                self._went_live.set()
            case Evaluating() | Evaluated():
                self._tasks.create_task(self._checkpoints.heard(message))
            case Reject(reason=reason):
                raise LinkRefused(reason)
            case _:
                log.warning("message.unexpected", type=type(message).__name__)

    # ── steps ───────────────────────────────────────────────────────────────────────────────

    async def _train(self) -> None:
        start, steps = self._start, self._config.run.steps
        await self._link.send(Ready(self._layout_hash))
        await self._publish(next_step=start.step)
        for stepped in start.stepped:
            await self._link.send(stepped)
        if start.checkpoint:
            await self._link.send(Commit(start.step - 1, start.checkpoint))
        if start.step < steps:
            self._upcoming = self._tasks.create_task(self._batch(start.step))
        for step in range(start.step, steps):
            await self._step(step)

    async def _step(self, step: int) -> None:
        started_s = self._clock()
        is_last = step + 1 == self._config.run.steps
        trained = await self._next_batch(None if is_last else step + 1)
        reach("trainer.batch_came")
        taken_s = self._clock()
        version_before = self._version_before(step)
        self._tell(Work("train", step, version_before))
        metrics = await self._in_thread(self._learner.train, trained, version_before)
        reach("trainer.trained")
        trained_s = self._clock()
        version = self._version
        if is_last or _every(self._config.schedule.steps_per_publish, step):
            await self._publish(next_step=step + 1)
        times = _Times(taken_s - started_s, trained_s - taken_s, self._clock() - trained_s)
        await self._step_done(step, version, metrics, times)
        if is_last or _every(self._config.checkpoint.every_steps, step):
            await self._checkpoint(step)

    def _version_before(self, step: int) -> int | None:
        """What the weights that ``step`` begins with were published as; None between two publishes."""
        is_published = step == self._start.step or step % self._config.schedule.steps_per_publish == 0
        return self._version if is_published else None

    async def _next_batch(self, following: int | None) -> Step:
        """What was asked for last, with the step after it asked for as soon as this one is here."""
        if self._upcoming is None:
            raise BrokenInvariant("a step began before its batch was asked for")
        step = await self._upcoming
        self._upcoming = None if following is None else self._tasks.create_task(self._batch(following))
        return step

    async def _batch(self, step: int) -> Step:
        future: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        self._batches[step] = future
        await self._link.send(Take(step))
        batch = await future
        del self._batches[step]
        self._tell(batch)
        group_size = self._config.schedule.group_size
        return await fetch_step(batch, self._learner, self._payloads, rank=0, group_size=group_size)

    async def _step_done(self, step: int, version: int, metrics: dict[str, float], times: _Times) -> None:
        step_s = times.wait_s + times.train_s + times.stage_s
        tokens = metrics["num_tokens"]
        self._num_tokens += int(tokens)
        timing = {
            "step_s": step_s,
            "train_s": times.train_s,
            "wait_s": times.wait_s,
            "stage_s": times.stage_s,
            "publish_s": self._publish_s,
            "publish_bytes": float(self._publish_bytes),
            "wait_trainer": times.wait_s / step_s if step_s else 0.0,
            "tokens_per_s": tokens / step_s if step_s else 0.0,
        }
        self._stepped.append(Stepped(step, version, metrics | timing))
        await self._link.send(self._stepped[-1])

    # ── weights ─────────────────────────────────────────────────────────────────────────────

    async def _publish(self, *, next_step: int) -> None:
        """
        Copy the weights and offer them. Returns once the copy is made; they travel while the next steps train.

        One version may wait while another travels; the next waits here until one of them is live. It does not take the
        place of the one that waits: the broker may be about to name that, and would break the transfer for everybody.
        (Of those it was offered the broker names the newest. One whose transfer broke may so be passed over.)
        """
        while self._live_version < self._version - 1:
            self._went_live.clear()
            await self._went_live.wait()
        self._tell(Work("gather", next_step))
        await self._in_thread(self._publisher.stage, self._version + 1, self._learner.named_weights())
        self._version += 1
        reach("trainer.staged")
        await self._link.send(Publishing(self._version, next_step))

    async def _transfer(self) -> None:
        """Transfers one after the other, in the order the broker asked."""
        while True:
            transfer = await self._transfers.get()
            try:
                done = await self._publisher.transfer(transfer)
            except TransferError as error:
                log.warning("transfer.failed", policy_version=transfer.policy_version, reason=str(error))
                await self._link.send(TransferFailed(transfer.transfer_group, transfer.policy_version, str(error)))
            else:
                self._publish_s, self._publish_bytes = done.seconds, done.num_bytes
                await self._link.send(done)

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────

    async def _checkpoint(self, step: int) -> None:
        """Copy all that it will hold; it is written while the next steps train."""
        await self._checkpoints.idle()
        self._tell(Work("snapshot", step))
        snapshot = await self._in_thread(self._learner.snapshot)
        self._checkpoints.begin(
            self._tasks, step=step + 1, policy_version=self._version, stepped=self._stepped, snapshot=snapshot
        )

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        self._occupancy.begin()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compute, function, *arguments)
        finally:
            self._occupancy.end()


def _every(interval: int, step: int) -> bool:
    """Does ``step`` end one more ``interval`` of steps? An interval of 0 never ends."""
    return bool(interval) and (step + 1) % interval == 0
