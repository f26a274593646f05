"""
The reward role: fetches stored trajectories, and sends their rewards to the broker.

    broker ── Grade ─▶ fetch payload ─▶ check ─▶ judge ─▶ Scored | Failed ─▶ broker
       ▲                 (spool)          │     (pool)                        │
       │                 │                └ lost or damaged: sampled again ──▶│
       │                 └ its spool is away: graded when that is back ──────▶│
       └────────────────────── Offer, as these are sent ◀─────────────────────┘

Each item of a `Grade` is judged independently, and answered with one `ScoredItem` or one `Failed`, unless the run
stops; at most ``max_open`` items are open. Rewards that are ready at the same moment share a `Scored`. Items that are
judged together are compared once each has its verdict, and answered with all their rewards in one `Scored`, or with the
`Failed` of the first that has none.

Safe to run inside another process: the actor installs no signal handler, does not touch logging or the event-loop
policy, starts no thread, and stops when its task is cancelled. Pool and connection are borrowed, not closed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Protocol

from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.errors import DecodeError, LinkClosed, LinkRefused, SpoolAway, VerifierError
from asyncrl.failpoints import failpoint
from asyncrl.log import get_logger
from asyncrl.messages.reward import Grade, GradeItem, Scored, ScoredItem
from asyncrl.messages.rollout import Failed, Offer
from asyncrl.messages.session import Barred, Beat, Drain, ModelUse, Reject, Stop
from asyncrl.messages.sound import image_problem_of, problem_of
from asyncrl.messages.spool import Spools
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.messages.trajectory import Prompt, Trajectory
from asyncrl.messages.words import REWARD_ACTIVITIES, Activity
from asyncrl.records.metrics import Sample, model_samples
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput, group_member, verifier_input
from asyncrl.wire.files import MAX_VERDICT_BYTES, cut_by_bytes, verdict_bytes
from asyncrl.wire.handshake import Connection
from asyncrl.wire.occupancy import Occupancy
from asyncrl.wire.spools import PayloadClient, at_fault
from asyncrl.workers.stacks import current_stacks

log = get_logger()

MAX_OPEN = 256
"""Open trajectories: four full frames to the workers, about 5 MB of payloads."""

FETCH_S = 120.0
"""Time limit of a spool for one payload, after which the trajectory is sampled again."""


def most_open(config: Config) -> int:
    """Trajectories that a node has open at once: two groups at least, if they are judged together."""
    return max(MAX_OPEN, 2 * config.trajectories_per_group if config.reward.group else 0)


class Judges(Protocol):
    """Whoever judges for a `RewardActor`; each method raises `VerifierError` if there is no verdict."""

    @property
    def replaced(self) -> int:
        """Workers that were replaced."""

    def __len__(self) -> int: ...

    async def judge(self, inputs: VerifierInput) -> Verdict: ...

    async def judge_group(self, members: list[GroupMember]) -> list[Verdict]: ...


class _Stopped(Exception): ...  # cancels the tasks of the task group


class RewardActor:
    """
    The reward role, for one session with a broker.

    Args:
        on_drain: Called when the broker asks this node to leave; other nodes judge its open items.
        max_open: Most items that are open at once, which is the number of credits offered.
        models: Gives the use of each model that the code of this node has asked.
    """

    def __init__(
        self,
        *,
        pool: Judges,
        connection: Connection,
        on_drain: Callable[[], None] | None = None,
        max_open: int = MAX_OPEN,
        models: Callable[[], dict[str, ModelUse]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._broker = connection.broker
        self._on_drain = on_drain
        self._spools = connection.spools
        self._payloads = PayloadClient(connection.spools)
        self._max_open = max_open
        self._models = models
        self._occupancy = Occupancy[Activity](REWARD_ACTIVITIES, clock)
        self._offered = 0
        self._settled = 0
        self._failed: Counter[str] = Counter({"reward": 0, "payload": 0})
        """Failures by stage."""
        self._scored: list[list[ScoredItem]] = []
        """Rewards to send; those of an inner list must not be separated."""
        self._has_scored = asyncio.Event()

    def heartbeat(self, lag_s: float) -> Beat:
        occupancy = self._occupancy
        return Beat(lag_s, occupancy.seconds, doing=occupancy.current, progress=self._settled, models=self._models())

    def status(self) -> str:
        """Trajectories graded and in hand."""
        in_hand = self._occupancy.num_active("grading")
        return f"{self._settled} trajectories graded, {in_hand} in hand"

    def metrics(self) -> Iterator[Sample]:
        """Values of its metrics now, for a scrape."""
        yield Sample("asyncrl_reward_workers", len(self._pool))
        yield Sample("asyncrl_reward_workers_replaced_total", self._pool.replaced)
        yield Sample("asyncrl_reward_trajectories_in_hand", self._occupancy.num_active("grading"))
        yield Sample("asyncrl_reward_graded_total", self._settled)
        for stage, number in self._failed.items():
            yield Sample("asyncrl_reward_failures_total", number, {"stage": stage})
        for activity, seconds in self._occupancy.seconds.items():
            yield Sample("asyncrl_reward_seconds_total", seconds, {"activity": activity})
        yield from model_samples(self._models())

    async def run(self) -> None:
        """
        Serve until the broker sends `Stop` or its link is closed; open items are dropped then.

        Raises:
            LinkReset: The broker has restarted: make new links and a new actor.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._spools.run())
                tasks.create_task(self._send_scored())
                await self._listen(tasks)
                raise _Stopped
        except ExceptionGroup as errors:
            if failed := errors.split((_Stopped, LinkClosed))[1]:
                raise failed.exceptions[0] from failed

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        await self._offer()
        while True:
            message = await self._broker.receive()
            match message:
                case Grade(items=items):
                    for of_task in [items] if message.together else [[item] for item in items]:
                        tasks.create_task(self._grade(message, of_task))
                case Spools(spools=spools):
                    self._spools.update(spools)
                case Barred(cause=cause, pause_s=pause_s):
                    log.warning("node.barred", cause=cause, seconds=pause_s)
                case Drain() if self._on_drain:
                    self._on_drain()
                case StacksWanted(node=node):
                    await self._broker.send(Stacks(node, current_stacks()))
                case Reject(reason=reason):
                    raise LinkRefused(reason)
                case Stop():
                    return

    async def _grade(self, grade: Grade, items: Sequence[GradeItem]) -> None:
        """Answer one item, or all that are judged together."""
        with ExitStack() as in_hand:
            for _ in items:
                in_hand.enter_context(self._occupancy.doing("grading"))
            answer = await (self._compare(grade) if grade.together else self._score(grade, items[0]))
        if not isinstance(answer, Failed):
            failpoint("reward.judged")
            self._scored.append(answer)
            self._has_scored.set()
            return
        await self._broker.send(answer)
        self._failed[answer.stage] += 1
        self._settled += len(items)
        await self._offer()

    async def _score(self, grade: Grade, item: GradeItem) -> list[ScoredItem] | Failed:
        judged = await self._judge(grade, item)
        if isinstance(judged, Failed):
            return judged
        try:
            return [_scored(item, judged[1])]
        except VerifierError as error:
            return _failed(item, error)

    async def _compare(self, grade: Grade) -> list[ScoredItem] | Failed:
        members: list[GroupMember] = []
        for judged in await asyncio.gather(*(self._judge(grade, item) for item in grade.items)):
            if isinstance(judged, Failed):
                return judged
            members.append(group_member(*judged))
        try:
            verdicts = await self._pool.judge_group(members)
            return [_scored(item, verdict) for item, verdict in zip(grade.items, verdicts, strict=True)]
        except VerifierError as error:
            return replace(_failed(grade.items[0], error), is_of_group=True)

    async def _judge(self, grade: Grade, item: GradeItem) -> tuple[VerifierInput, Verdict] | Failed:
        """Fetch a trajectory and judge it: the verifier's input, and its verdict."""
        try:
            trajectory = await self._payloads.fetch(item.ref, FETCH_S)
        except SpoolAway as error:
            return Failed(item.unit, item.lease_id, "payload", str(error), retryable=True, is_unreachable=True)
        except TimeoutError:
            reason = f"the spool {item.ref.spool} did not send the payload within {FETCH_S:g} s"
            return Failed(item.unit, item.lease_id, "payload", reason, retryable=True, at_fault="spool")
        except DecodeError as error:
            return Failed(item.unit, item.lease_id, "payload", str(error), retryable=True, at_fault=at_fault(error))
        problem = problem_of(trajectory, item.unit, item.summary, grade.limits)
        if problem := problem or image_problem_of(trajectory, grade.prompt.images):
            return Failed(item.unit, item.lease_id, "payload", problem, retryable=True)
        inputs = input_of(grade.prompt, trajectory)
        try:
            return inputs, await self._pool.judge(inputs)
        except VerifierError as error:
            return _failed(item, error)

    async def _send_scored(self) -> None:
        """Send all rewards that are ready whenever this task runs."""
        while True:
            await self._has_scored.wait()
            self._has_scored.clear()
            scored, self._scored = self._scored, []
            for chunk in cut_by_bytes(scored, _size):
                items = list(chain.from_iterable(chunk))
                await self._broker.send(Scored(items))
                self._settled += len(items)
            await self._offer()

    async def _offer(self) -> None:
        """Offer credits once a quarter of them is free: few messages, and the broker never runs out first."""
        limit = self._settled + self._max_open
        if limit - self._offered >= max(1, self._max_open // 4):
            self._offered = limit
            await self._broker.send(Offer(limit))


def _size(items: Sequence[ScoredItem]) -> int:
    return sum(map(verdict_bytes, items))


def _failed(item: GradeItem, error: VerifierError) -> Failed:
    return Failed(item.unit, item.lease_id, "reward", str(error), error.retryable)


def _scored(item: GradeItem, verdict: Verdict) -> ScoredItem:
    """The answer to ``item``; raises `VerifierError` if the verdict is too large to be sent."""
    scored = ScoredItem(item.unit, verdict.reward, verdict.metrics, item.lease_id, verdict.answer)
    if (size := verdict_bytes(scored)) > MAX_VERDICT_BYTES:
        raise VerifierError(
            f"the verdict has {size} bytes of metrics and answer, but at most {MAX_VERDICT_BYTES} are allowed; "
            f"return fewer or shorter ones"
        )
    return scored


def input_of(prompt: Prompt, trajectory: Trajectory) -> VerifierInput:
    num_tokens = len(trajectory.completion_ids) // 4  # int32
    return verifier_input(
        prompt,
        trajectory.text,
        finish_reason=trajectory.finish_reason,
        num_tokens=num_tokens,
        turns=trajectory.turns,
        scores=trajectory.scores,
        opened=trajectory.opened,
    )
