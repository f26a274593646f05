"""
A simulated cluster under virtual time around the real `Scheduler`.

    SimulatedRollout ─Stored─▶                     ─Grade─▶ SimulatedReward
    SimulatedTrainer ─Take, Publishing─▶ SCHEDULER ─Lease, Batch, Transfer─▶ ...

Messages arrive at once and are never lost. The broker's own rules decide which rollout samples which group, what a step
takes, when a version is live and when the window admits a group. The scheduler's timers are not run: no node is late.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from itertools import count

from msgspec import Struct

from asyncrl.broker.ledger.records import Restarted
from asyncrl.broker.scheduler import Scheduler
from asyncrl.data.prompts import Draw, PromptStream
from asyncrl.messages.codec import Message
from asyncrl.messages.reward import Grade, Scored, ScoredItem
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Hello, Ready
from asyncrl.messages.spool import SpoolRef, Stored, StoredItem
from asyncrl.messages.trainer import Batch, Commit, ScoredTrajectory, Take
from asyncrl.messages.trajectory import Prompt, Span, Unit
from asyncrl.messages.weights import Published, Publishing, Transfer, Transferred
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.tools.plan.lengths import Lengths, TrainingSpeed
from asyncrl.tools.plan.sections import Plan

# ── event queue ───────────────────────────────────────────────────────────────────────────────
# Virtual time: a queue of events, and a clock that jumps from one event to the next.


class EventQueue:
    """Runs callbacks in order of time; at equal times in the order they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._events)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), do))

    def advance(self) -> bool:
        """Run the next event. Returns False if there is none."""
        if not self._events:
            return False
        self.now_s, _, do = heapq.heappop(self._events)
        do()
        return True


# ── cluster ───────────────────────────────────────────────────────────────────────────────────

SPOOL = "spool.0"
NOWHERE = SpoolRef("spool", 0, 0, 0, 0)
ENDLESS = 2**62
"""Credits of the reward, which grades any number of trajectories at once."""


class Prompts(PromptStream):
    """An endless stream of placeholder prompts."""

    def __init__(self) -> None:
        self._limit = None
        self._prompt = Prompt(text="planned")

    def at(self, group_id: int) -> Draw:
        return Draw(group_id, 0, group_id, self._prompt)

    def __repr__(self) -> str:
        return "<Prompts of a plan>"


class SimulatedReward:
    """Grades each trajectory with reward 0 in a fixed time: ``at_once`` of them, or any number if that is 0."""

    def __init__(self, cluster: "SimulatedCluster", seconds: float, at_once: int = 0) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._free_s = [0.0] * at_once
        """Heap of the times at which each of the calls is free for what comes next."""
        self._peer = cluster.join(self.handle, "reward", "reward")
        cluster.send(self._peer, Offer(ENDLESS))

    def handle(self, message: Message) -> None:
        if not isinstance(message, Grade):
            return
        scored = [ScoredItem(item.unit, 0.0, {}, item.lease_id) for item in message.items]
        if not self._free_s:
            self._answer(self._seconds, scored)
            return
        now_s = self._cluster.events.now_s
        for item in scored:
            ends_s = max(self._free_s[0], now_s) + self._seconds
            heapq.heapreplace(self._free_s, ends_s)
            self._answer(ends_s - now_s, [item])

    def _answer(self, seconds: float, scored: list[ScoredItem]) -> None:
        self._cluster.after(seconds, lambda: self._cluster.send(self._peer, Scored(scored)))


class SimulatedCluster:
    """The scheduler and its connections to the simulated nodes, for a run of ``steps`` optimizer steps."""

    def __init__(self, plan: Plan, steps: int, lengths: Lengths) -> None:
        self.plan = plan
        self.events = EventQueue()
        self.scheduler = Scheduler(plan.run_config(steps), Prompts(), [], broker_term=1)
        self._lengths = lengths
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._inbox: deque[tuple[str, Message]] = deque()
        self._is_handling = False
        self.spans: dict[Unit, list[Span]] = {}
        """Spans of stored trajectories that are not trained on yet."""
        self.num_restarted = 0
        """Groups sampled again because they were too old."""
        self.scheduler.joined(SPOOL, Hello(PROTOCOL, "spool", "spool", "0"), 0.0)

    def join(self, handle: Callable[[Message], None], role: Role, name: str) -> str:
        """Let a node join, whose messages go to ``handle``. Returns its peer name."""
        peer = f"{name}.0"
        self._handlers[peer] = handle
        self.scheduler.joined(peer, Hello(PROTOCOL, role, name, "0"), self.events.now_s)
        return peer

    def send(self, peer: str, *messages: Message) -> None:
        """Send messages to the broker. Messages that a node sends while it handles one are queued."""
        self._inbox.extend((peer, message) for message in messages)
        if self._is_handling:
            return
        self._is_handling = True
        while self._inbox:
            self.scheduler.handle(*self._inbox.popleft(), self.events.now_s)
            outbox, records, _ = self.scheduler.out.drain()
            self.num_restarted += sum(isinstance(record, Restarted) for record in records)
            for outgoing in outbox:
                if handle := self._handlers.get(outgoing.peer):
                    handle(outgoing.message)
        self._is_handling = False

    def store(self, node: str, item: StoredItem, spans: list[Span]) -> None:
        """Report a trajectory of ``node`` as stored by the spool."""
        self.spans[item.unit] = spans
        self.send(SPOOL, Stored(node, "0", [item]))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Call ``do`` after ``seconds``, at once if that is 0."""
        if seconds:
            self.events.after(seconds, do)
        else:
            do()

    def lengths_of(self, group_id: int, indices: Collection[int]) -> list[int]:
        """Completion tokens of some trajectories of a group; they depend on the seed and the group alone."""
        rng = random.Random(f"{self.plan.horizon.seed}/{group_id}")
        lengths = self._lengths.group(rng, self.plan.schedule.group_size)
        return [lengths[index] for index in indices]


# ── trainer ───────────────────────────────────────────────────────────────────────────────────
# Simulated trainer: exchanges the messages of a real one; the duration of a step depends on its tokens.


class TrainedStep(Struct, frozen=True):
    step: int
    policy_version: int
    """The trainer's version when it consumed the batch."""
    began_s: float
    ended_s: float
    trajectories: list[ScoredTrajectory]
    spans: list[list[Span]]


class SimulatedTrainer:
    """Requests a batch ahead, trains and publishes. A version is offered once the previous one is live."""

    def __init__(self, cluster: SimulatedCluster, speed: TrainingSpeed, steps: int) -> None:
        self._cluster = cluster
        self._speed = speed
        self._steps = steps
        self._batch: Batch | None = None
        self._policy_version = 0
        self._live_version = -1
        self._is_training = False
        self._to_publish: int | None = None
        """``next_step`` of weights that are not offered yet."""
        self.done: list[TrainedStep] = []
        self._peer = cluster.join(self.handle, "trainer", "trainer")
        cluster.send(self._peer, Ready("planned"), Publishing(0, 0), Take(0))

    def handle(self, message: Message) -> None:
        match message:
            case Batch():
                self._batch = message
                self._train()
            case Published(policy_version=version):
                self._live_version = version
                self._publish()
                self._train()
            case Transfer(transfer_group=transfer_group, policy_version=version):
                done = Transferred(transfer_group, version, self._cluster.plan.publish.seconds, 0)
                self._cluster.events.after(done.seconds, lambda: self._cluster.send(self._peer, done))

    def _train(self) -> None:
        blocked = self._cluster.plan.publish.blocks_trainer and self._live_version < self._policy_version
        if self._batch is None or self._is_training or self._to_publish is not None or blocked:
            return
        batch, self._batch = self._batch, None
        self._is_training = True
        tokens = sum(t.summary.num_tokens + t.summary.prompt_tokens for t in batch.trajectories)
        seconds = self._speed.seconds(tokens, self._cluster.plan.trainer_devices)
        spans = [self._cluster.spans.pop(trajectory.unit) for trajectory in batch.trajectories]
        now_s = self._cluster.events.now_s
        step = TrainedStep(batch.step, self._policy_version, now_s, now_s + seconds, batch.trajectories, spans)
        self._cluster.events.after(seconds, lambda: self._trained(step))
        if batch.step + 1 < self._steps:
            self._cluster.send(self._peer, Take(batch.step + 1))

    def _trained(self, step: TrainedStep) -> None:
        self.done.append(step)
        self._is_training = False
        next_step = step.step + 1
        if next_step == self._steps or next_step % self._cluster.plan.schedule.steps_per_publish == 0:
            self._to_publish = next_step
            self._publish()
            self._cluster.send(self._peer, Commit(step.step, "planned"))  # Lets the scheduler forget old groups.
        self._train()

    def _publish(self) -> None:
        if self._to_publish is None or self._live_version < self._policy_version:
            return
        next_step, self._to_publish = self._to_publish, None
        self._policy_version += 1
        self._cluster.send(self._peer, Publishing(self._policy_version, next_step))


# ── result ────────────────────────────────────────────────────────────────────────────────────
# Result of a simulation: averages of the steady state, staleness shares and a timeline.


class SimulationResult(Struct, frozen=True, kw_only=True):
    """A cluster after its warm-up. A step is one optimizer step."""

    devices: int
    rollout_devices: int
    """Equal to ``devices`` for the colocated baseline."""
    staleness: float
    steps_per_publish: int
    step_s: float
    group_s: float
    """Seconds per group; compares plans with different batch sizes."""
    rollout_idle: float
    """Share of replica seconds with nothing to decode."""
    running: float
    """Mean number of completions that a busy replica decodes at once."""
    trainer_idle: float
    tokens_per_s: float
    """Completion tokens trained per second."""
    token_staleness: dict[int, float] = {}
    """Share of trained tokens by staleness of the token."""
    trajectory_staleness: dict[int, float] = {}
    """Share of trained trajectories by staleness of their oldest token."""
    peak_open: int = 0
    """Most groups in the window at once."""
    timeline: list[tuple[float, float]] = []
    """(second, completions being decoded by all replicas) from the end of the warm-up."""

    @property
    def lag(self) -> float:
        """Steps for which the groups of a full window last, less the one they are admitted for: (1 + S) T - 1."""
        return (1 + self.staleness) * self.steps_per_publish - 1

    @property
    def staleness_mean(self) -> float:
        """Mean over trajectories, like the metric of a run."""
        return sum(staleness * share for staleness, share in self.trajectory_staleness.items())

    @property
    def staleness_max(self) -> int:
        return max(self.trajectory_staleness, default=0)


def token_staleness(steps: Sequence[TrainedStep]) -> dict[int, float]:
    tokens: Counter[int] = Counter()
    for step in steps:
        for spans in step.spans:
            for span in spans:
                tokens[step.policy_version - span.policy_version] += span.end - span.start
    return _shares(tokens)


def trajectory_staleness(steps: Sequence[TrainedStep]) -> dict[int, float]:
    """Share of trajectories by staleness of their oldest token."""
    return _shares(
        Counter(
            step.policy_version - trajectory.summary.oldest_version
            for step in steps
            for trajectory in step.trajectories
        )
    )


def completion_tokens(steps: Sequence[TrainedStep]) -> int:
    return sum(trajectory.summary.num_tokens for step in steps for trajectory in step.trajectories)


def _shares(counts: Counter[int]) -> dict[int, float]:
    total = sum(counts.values())
    return {value: counts[value] / total for value in sorted(counts)}
