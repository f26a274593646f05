"""
Traces of a broker: the shell around `GroupLives`, which has a clock and hands spans over as they end.

It is told the scheduler's output after a replay only, so nothing is traced twice.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import count

from msgspec import Struct

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Dropped,
    FailedAttempt,
    Progressed,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.ledger.state import OpenGroups
from asyncrl.broker.nodes.node import name_of
from asyncrl.broker.outbox import OutgoingMessage
from asyncrl.broker.scheduler import Scheduler
from asyncrl.messages.reward import Grade
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.records.spans import ROOT, Attribute, SendSpans, SpanEvent, TraceSpan

# ── ids ───────────────────────────────────────────────────────────────────────────────────────
# Ids of traces and spans. A trace has the same id in every life of the broker, so that its spans come together.


class TraceIds:
    """Ids of one life of the broker of one run. They are hashes, so each of their bits is as good as random."""

    def __init__(self, run_id: str, broker_term: int) -> None:
        self._run_id = run_id
        self._broker_term = broker_term
        self._spans = count()

    def trace(self, group_id: int) -> int:
        """128 bits that depend on the run and the group alone."""
        return _hash(f"{self._run_id}/{group_id}", 16)

    def next_span(self) -> int:
        """64 bits that were given out never before."""
        return _hash(f"{self._run_id}/{self._broker_term}/{next(self._spans)}", 8)


def _hash(text: str, num_bytes: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=num_bytes).digest(), "big")


# ── group life ────────────────────────────────────────────────────────────────────────────────
# The open spans of one group. Each call tells what has happened to it, and when; spans that end with it are appended.
#
# Every trajectory is in one stage at a time. What happens to it tells which stage that was, whatever it seemed to be:
# when a broker has restarted, a trajectory that seems to wait may be sampled by a rollout, or be graded.

MAX_EVENTS = 128
"""Events of one span, as OpenTelemetry limits them by default; an episode may have a thousand turns."""


class OpenSpan(Struct):
    name: str
    span_id: int
    start_s: float
    attributes: dict[str, Attribute] = {}
    events: list[SpanEvent] = []

    def event(self, name: str, now_s: float, **attributes: Attribute) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(SpanEvent(name, now_s, attributes))


class TracedTrajectory(Struct):
    span: OpenSpan
    stage: OpenSpan


class GroupLife:
    """
    Spans of one group, from its admission on.

    Args:
        now_s: Unix time of the admission, as in all calls.
        ended: Spans that have ended; this object appends to it.
        attributes: Attributes of the root.
    """

    def __init__(
        self, group_id: int, ids: TraceIds, now_s: float, ended: list[TraceSpan], **attributes: Attribute
    ) -> None:
        self._trace_id = ids.trace(group_id)
        self._ids = ids
        self._ended = ended
        self._root = self._begin(ROOT, now_s, group_id=group_id, **attributes)
        self._since_s = now_s
        """Time since which the trajectories that nothing was told about wait."""
        self._complete_s = now_s
        """Time of the last reward."""
        self._num_restarts = 0
        self._trajectories: dict[int, TracedTrajectory] = {}
        """Trajectories without a reward, by index, once something was told about them."""
        self._step: OpenSpan | None = None
        """``training`` or ``publishing``; None before a step takes the group."""
        self._nodes: dict[int, str] = {}
        """Rollout of each lease."""

    # ── one trajectory ──────────────────────────────────────────────────────────────────────

    def leased(self, index: int, lease_id: int, node: str, now_s: float) -> None:
        self._nodes[lease_id] = node
        trajectory = self._trajectory(index)
        if trajectory.stage.start_s < now_s or trajectory.stage.events:
            self._next(index, "waiting", "generating", now_s)
        trajectory.stage.name = "generating"  # Without a wait before it, if it was leased at once.
        trajectory.stage.attributes.update(node=node, lease_id=lease_id)

    def progressed(self, index: int, num_tokens: int, now_s: float) -> None:
        stage = self._stage(index)
        stage.name = "generating"
        stage.event("progress stored", now_s, tokens=num_tokens)

    def stored(self, index: int, lease_id: int, summary: TrajectorySummary, now_s: float) -> None:
        self._stage(index).attributes.update(
            node=self._nodes.get(lease_id, "unknown"),
            lease_id=lease_id,
            tokens=summary.num_tokens,
            oldest_version=summary.oldest_version,
            newest_version=summary.newest_version,
            finish_reason=summary.finish_reason,
            turns=summary.num_turns,
            environment_seconds=summary.environment_s,
        )
        self._next(index, "generating", "grading", now_s)

    def assigned(self, index: int, node: str, now_s: float) -> None:
        """A reward node was asked for the verdict."""
        stage = self._stage(index)
        stage.name = "grading"
        stage.attributes["node"] = node
        stage.event("assigned", now_s, node=node)

    def rewarded(self, index: int, reward: float, now_s: float) -> None:
        trajectory = self._trajectory(index)
        trajectory.stage.name = "grading"
        for span in (trajectory.stage, trajectory.span):
            span.attributes["reward"] = reward
        self._end_trajectory(index, now_s)
        self._complete_s = now_s

    def failed(self, record: FailedAttempt, now_s: float) -> None:
        """An attempt has failed; unless it was the last one, the next begins."""
        index, reason = record.unit.index, record.reason
        if record.stage == "trainer":
            self._root.event("refused", now_s, index=index, reason=reason)
            return
        stage = self._stage(index)
        stage.name = "grading" if record.stage in ("reward", "payload") else "generating"
        if record.is_final:
            self._end_trajectory(index, now_s, reason)
        else:
            self._next(index, stage.name, "grading" if record.stage == "reward" else "waiting", now_s, reason)

    def reissued(self, record: Reissued, now_s: float) -> None:
        """A lease has ended without a result, or goes on from the prompt."""
        index = record.unit.index
        if not record.loses_progress:  # Otherwise the attempt has failed before, or the lease goes on.
            self._next(index, "generating", "waiting", now_s, f"the lease ended: {record.cause}")
        self._stage(index).event("reissued", now_s, cause=record.cause, tokens=record.num_tokens)

    # ── the whole group ─────────────────────────────────────────────────────────────────────

    def restarted(self, policy_version: int, num_tokens: int, now_s: float) -> None:
        self._root.event("restarted", now_s, policy_version=policy_version, tokens=num_tokens)
        self._num_restarts += 1
        self._cut("the group was restarted", now_s)
        self._since_s = self._complete_s = now_s

    def taken(self, step: int, now_s: float) -> None:
        self._end(self._begin("waiting for the trainer", self._complete_s, step=step), self._root, now_s)
        self.trains(step, now_s)

    def trains(self, step: int, now_s: float) -> None:
        """A step trains on the group, which it took now or before the broker started."""
        self._root.attributes["step"] = step
        self._step = self._begin("training", now_s, step=step)

    def stepped(self, step: int, now_s: float) -> None:
        """The step is done; a trainer that resumes may repeat it."""
        if self._step and self._step.name == "training":
            self._end(self._step, self._root, now_s)
            self._step = self._begin("publishing", now_s, step=step)

    def live(self, policy_version: int, now_s: float) -> None:
        """The weights that the group helped to make are live."""
        if self._step:
            self._step.name = "publishing"
            self._step.attributes["policy_version"] = policy_version
        self.over("trained", "", now_s)

    def over(self, outcome: str, error: str, now_s: float) -> None:
        """The group ends, and all its spans; ``error`` is the reason of a failure."""
        self._cut(error and "the group ended", now_s)
        if self._step:
            self._end(self._step, self._root, now_s)
        self._root.attributes.update(outcome=outcome, restarts=self._num_restarts)
        self._end(self._root, None, now_s, error)

    # ── spans ───────────────────────────────────────────────────────────────────────────────

    def _trajectory(self, index: int) -> TracedTrajectory:
        if (found := self._trajectories.get(index)) is None:
            span = self._begin("trajectory", self._since_s, index=index)
            found = self._trajectories[index] = TracedTrajectory(span, self._begin("waiting", self._since_s))
        return found

    def _stage(self, index: int) -> OpenSpan:
        return self._trajectory(index).stage

    def _next(self, index: int, ended: str, begun: str, now_s: float, error: str = "") -> None:
        """One stage of a trajectory, ``ended``, is over, and the next has begun."""
        trajectory = self._trajectory(index)
        trajectory.stage.name = ended
        self._end(trajectory.stage, trajectory.span, now_s, error)
        trajectory.stage = self._begin(begun, now_s)

    def _end_trajectory(self, index: int, now_s: float, error: str = "") -> None:
        trajectory = self._trajectories.pop(index)
        self._end(trajectory.stage, trajectory.span, now_s, error)
        self._end(trajectory.span, self._root, now_s, error)

    def _cut(self, error: str, now_s: float) -> None:
        """End all trajectories without a reward."""
        for index in list(self._trajectories):
            self._end_trajectory(index, now_s, error)

    def _begin(self, name: str, start_s: float, **attributes: Attribute) -> OpenSpan:
        return OpenSpan(name, self._ids.next_span(), start_s, attributes)

    def _end(self, span: OpenSpan, parent: OpenSpan | None, now_s: float, error: str = "") -> None:
        parent_id = parent.span_id if parent else 0
        ids = (self._trace_id, span.span_id, parent_id)
        self._ended.append(TraceSpan(span.name, *ids, span.start_s, now_s, span.attributes, span.events, error))


# ── group lives ───────────────────────────────────────────────────────────────────────────────
# Spans of all open training groups, from what the broker decides: its records, leases and gradings.
#
#     scheduler.out.drain() ─▶ records, messages ─▶ observe ─▶ spans that have ended
#                                    │
#                                    └─ Admitted ─▶ open ─▶ its version is live, Dropped or Untrained ─▶ forgotten
#
# Pure: the time is an argument. Held-out groups have no spans.

UnitRecord = Progressed | Result | Rewarded | FailedAttempt | Reissued


class GroupLives:
    """
    The open groups of one life of the broker.

    Args:
        now_s: Unix time, as in all calls.
        untaken: Groups that an earlier broker admitted, and no step has taken.
        taken: Groups of each step that was taken and whose weights are not live.
    """

    def __init__(
        self, ids: TraceIds, now_s: float, untaken: Iterable[int] = (), taken: Mapping[int, Iterable[int]] | None = None
    ) -> None:
        self._ids = ids
        self._groups = OpenGroups(taken=taken)
        self._open: dict[int, GroupLife] = {}
        """Lives of these groups, without those that their step left out."""
        self._ended: list[TraceSpan] = []
        for group_id in untaken:
            self._opened(group_id, now_s, resumed=True)
        for step, group_ids in (taken or {}).items():
            for group_id in group_ids:
                self._opened(group_id, now_s, resumed=True).trains(step, now_s)

    def __len__(self) -> int:
        return len(self._open)

    def observe(self, outbox: Iterable[OutgoingMessage], records: Iterable[AnyRecord], now_s: float) -> list[TraceSpan]:
        """Take in one output of the scheduler. Returns the spans that end with it."""
        for record in records:
            self._recorded(record, now_s)
        for outgoing in outbox:  # What they ask for follows from the records.
            self._sent(outgoing, now_s)
        return self._take()

    def stepped(self, step: int, now_s: float) -> list[TraceSpan]:
        """The trainer has done a step. Returns the spans that end with it."""
        for group_id in self._groups.of_step(step):
            if life := self._open.get(group_id):
                life.stepped(step, now_s)
        return self._take()

    def stop(self, now_s: float) -> list[TraceSpan]:
        """The broker stops. Returns the spans that are still open, which end here."""
        for life in self._open.values():
            life.over("open", "", now_s)
        self._open.clear()
        return self._take()

    def _take(self) -> list[TraceSpan]:
        # The lives append to this list, so it is emptied and not replaced.
        ended = self._ended[:]
        self._ended.clear()
        return ended

    def _opened(self, group_id: int, now_s: float, **attributes: Attribute) -> GroupLife:
        self._groups.admitted(group_id)
        self._open[group_id] = life = GroupLife(group_id, self._ids, now_s, self._ended, **attributes)
        return life

    def _over(self, group_id: int, outcome: str, error: str, now_s: float) -> None:
        self._groups.dropped(group_id)
        if life := self._open.pop(group_id, None):
            life.over(outcome, error, now_s)

    def _life(self, unit: Unit) -> GroupLife | None:
        return self._open.get(unit.group_id) if unit.split == "train" else None

    def _recorded(self, record: AnyRecord, now_s: float) -> None:
        match record:
            case Progressed() | Result() | Rewarded() | FailedAttempt() | Reissued():
                if life := self._life(record.unit):
                    _told(life, record, now_s)
            case Admitted(group_id=group_id, epoch=epoch, row=row, policy_version=version):
                self._opened(group_id, now_s, epoch=epoch, row=row, policy_version=version)
            case Restarted(group_id=group_id, policy_version=version, lengths=lengths):
                if life := self._open.get(group_id):
                    life.restarted(version, sum(lengths), now_s)
            case Dropped(group_id=group_id, reason=reason):
                self._over(group_id, "dropped", reason, now_s)
            case Untrained(group_id=group_id, reason=reason):
                self._over(group_id, "untrained", reason, now_s)
            case Taken(step=step, group_ids=group_ids):
                self._groups.taken(step, group_ids)
                for group_id in group_ids:
                    if life := self._open.get(group_id):
                        life.taken(step, now_s)
            case VersionLive():
                self._live(record, now_s)

    def _live(self, record: VersionLive, now_s: float) -> None:
        for group_id in self._groups.live(record.next_step):
            if life := self._open.pop(group_id, None):
                life.live(record.policy_version, now_s)

    def _sent(self, outgoing: OutgoingMessage, now_s: float) -> None:
        match outgoing.message:
            case Lease(lease_id=lease_id, group_id=group_id, indices=indices, split="train"):
                if life := self._open.get(group_id):
                    for index in indices:
                        life.leased(index, lease_id, name_of(outgoing.peer), now_s)
            case Grade(items=items):
                for item in items:
                    if life := self._life(item.unit):
                        life.assigned(item.unit.index, name_of(outgoing.peer), now_s)


def _told(life: GroupLife, record: UnitRecord, now_s: float) -> None:
    index = record.unit.index
    match record:
        case Progressed(summary=summary):
            life.progressed(index, summary.num_tokens, now_s)
        case Result(lease_id=lease_id, summary=summary):
            life.stored(index, lease_id, summary, now_s)
        case Rewarded(reward=reward):
            life.rewarded(index, reward, now_s)
        case FailedAttempt():
            life.failed(record, now_s)
        case Reissued():
            life.reissued(record, now_s)


# ── traces ────────────────────────────────────────────────────────────────────────────────────


def unix_clock() -> Callable[[], float]:
    """Clock of Unix time that never goes back while this process lives: spans must not end before they start."""
    offset_s = time.time() - time.monotonic()
    return lambda: offset_s + time.monotonic()


class Traces:
    """Spans of the groups that ``scheduler``, after its replay, has open or opens from now on."""

    def __init__(
        self, scheduler: Scheduler, ids: TraceIds, send: SendSpans, clock: Callable[[], float] | None = None
    ) -> None:
        self._send = send
        self._clock = clock or unix_clock()
        untaken = (group.group_id for group in scheduler.training.batches)
        self._lives = GroupLives(ids, self._clock(), untaken, scheduler.window.consumed)

    def observe(self, outbox: Sequence[OutgoingMessage], records: Sequence[AnyRecord]) -> None:
        if outbox or records:
            self._hand_over(self._lives.observe(outbox, records, self._clock()))

    def stepped(self, step: int) -> None:
        self._hand_over(self._lives.stepped(step, self._clock()))

    def stop(self) -> None:
        self._hand_over(self._lives.stop(self._clock()))

    def _hand_over(self, spans: list[TraceSpan]) -> None:
        if spans:
            self._send(spans)
