"""
Turns stored trajectories into verdicts.

    broker ── Grade ─▶ fetch payload ─▶ check ─▶ judge ─▶ Scored | Failed ─▶ broker
       ▲                 (spool)                (pool)                        │
       └────────────────────────── Offer, as these settle ◀───────────────────┘

Every `Grade` is answered with one `Scored` or one `Failed`, unless the run stops; at most ``max_in_hand`` are open.

Safe to run inside someone else's process: it installs no signal handler, touches no logging configuration or event-loop
policy, starts no thread, and stops when its task is cancelled. Pool and links are borrowed: who made them closes them.
"""

import asyncio
import time
import zlib
from collections.abc import Callable

import msgspec

from asyncrl.actor.link import Link
from asyncrl.errors import LinkClosed, VerifierError
from asyncrl.messages import Beat, Failed, Grade, Offer, Prompt, Scored, SpoolRef, Stop, Trajectory
from asyncrl.reward.occupancy import Occupancy
from asyncrl.reward.payloads import Payloads
from asyncrl.reward.pool import WorkerPool
from asyncrl.reward.verifier import Sample

MAX_IN_HAND = 256
"""Trajectories in hand at once: four full frames to the workers, about 5 MB of payloads."""


class _Stopped(Exception):
    """Leaves the task group, and with it everything in hand."""


class RewardActor:
    """
    The reward role, for one session with a broker and a spool.

    Args:
        pool: Started.
        link: To the broker, greeted already.
        spool: To the spool that serves this node, greeted already.
        max_in_hand: Trajectories in hand at once; so many credits are offered.
        clock: Seconds, for ``busy_s`` and ``wait_s``.
    """

    def __init__(
        self,
        *,
        pool: WorkerPool,
        link: Link,
        spool: Link,
        max_in_hand: int = MAX_IN_HAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._link = link
        self._payloads = Payloads(spool)
        self._max_in_hand = max_in_hand
        self._occupancy = Occupancy(clock)
        self._decoder = msgspec.msgpack.Decoder(Trajectory)
        self._offered = 0
        self._settled = 0

    @property
    def busy_s(self) -> float:
        """Seconds at least one trajectory was in hand, for beats."""
        return self._occupancy.busy_s

    @property
    def wait_s(self) -> float:
        """Seconds there was none, for beats."""
        return self._occupancy.wait_s

    def beat(self, lag_s: float) -> Beat:
        """A sign of life, with running totals."""
        return Beat(lag_s, self.busy_s, self.wait_s)

    async def run(self) -> None:
        """
        Serve until the broker says `Stop`, or its link is closed; what is in hand then is dropped.

        Raises:
            LinkReset: The broker or the spool has restarted: make new links, and a new actor.
            LinkError: The link to the spool is closed.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._payloads.ask())
                tasks.create_task(self._payloads.hear())
                await self._listen(tasks)
                raise _Stopped
        except ExceptionGroup as errors:
            if failed := errors.split((_Stopped, LinkClosed))[1]:
                raise failed.exceptions[0] from failed

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        await self._offer()
        while True:
            message = await self._link.receive()
            match message:
                case Grade():
                    tasks.create_task(self._grade(message))
                case Stop():
                    return

    async def _grade(self, grade: Grade) -> None:
        self._occupancy.begin()
        try:
            answer = await self._answer(grade)
        finally:
            self._occupancy.end()
        await self._link.send(answer)
        self._settled += 1
        await self._offer()

    async def _answer(self, grade: Grade) -> Scored | Failed:
        """A verdict, or why there is none."""
        try:
            trajectory = self._decode(grade, await self._payloads.fetch(grade.ref))
            verdict = await self._pool.judge(sample_of(grade.prompt, trajectory))
        except VerifierError as error:
            return Failed(grade.unit, grade.token, "reward", str(error), error.retryable)
        return Scored(grade.unit, verdict.score, verdict.metrics)

    def _decode(self, grade: Grade, payload: memoryview) -> Trajectory:
        _check(grade.ref, payload)
        try:
            trajectory = self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise VerifierError(f"the payload at {_place(grade.ref)} is no trajectory: {error}") from error
        if trajectory.unit != grade.unit:
            raise VerifierError(f"the payload at {_place(grade.ref)} is of {trajectory.unit}, expected {grade.unit}")
        return trajectory

    async def _offer(self) -> None:
        """Offer again once a quarter of the credits is free: fewer messages, and the broker never runs out first."""
        limit = self._settled + self._max_in_hand
        if limit - self._offered >= max(1, self._max_in_hand // 4):
            self._offered = limit
            await self._link.send(Offer(limit))


def sample_of(prompt: Prompt, trajectory: Trajectory) -> Sample:
    """What a verifier is given of a trajectory."""
    return Sample(
        prompt=prompt.chat or prompt.text,
        completion=trajectory.text,
        answer=prompt.answer,
        data_source=prompt.data_source,
        extra=prompt.extra,
        finish_reason=trajectory.finish_reason,
        num_tokens=len(trajectory.completion_ids) // 4,
    )


def _check(ref: SpoolRef, payload: memoryview) -> None:
    """
    Raises:
        VerifierError: The bytes are not those that were stored. Retryable: another try samples, or reads, them anew.
    """
    if not payload:
        raise VerifierError(f"the spool no longer has the payload at {_place(ref)}", retryable=True)
    if (found := zlib.crc32(payload)) != ref.crc32:
        what = f"checksum {found:#010x}, expected {ref.crc32:#010x}"
        raise VerifierError(f"the payload at {_place(ref)} is damaged: {what}", retryable=True)


def _place(ref: SpoolRef) -> str:
    return f"{ref.spool}, segment {ref.segment}, offset {ref.offset}"
