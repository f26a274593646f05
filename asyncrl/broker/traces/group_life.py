"""
The open spans of one group. Each call tells what has happened to it, and when; spans that end with it are appended.

Every trajectory is in one stage at a time. What happens to it tells which stage that was, whatever it seemed to be:
when a broker has restarted, a trajectory that seems to wait may be sampled by a rollout, or be graded.
"""

from msgspec import Struct

from asyncrl.broker.ledger.records import FailedAttempt, Reissued
from asyncrl.broker.traces.ids import TraceIds
from asyncrl.messages.trajectory import TrajectorySummary
from asyncrl.observe.traces.span import Attribute, Span, SpanEvent
from asyncrl.observe.traces.table import ROOT

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


class Trajectory(Struct):
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

    def __init__(self, group_id: int, ids: TraceIds, now_s: float, ended: list[Span], **attributes: Attribute) -> None:
        self._trace_id = ids.trace(group_id)
        self._ids = ids
        self._ended = ended
        self._root = self._begin(ROOT, now_s, group_id=group_id, **attributes)
        self._since_s = now_s
        """Time since which the trajectories that nothing was told about wait."""
        self._complete_s = now_s
        """Time of the last reward."""
        self._num_restarts = 0
        self._trajectories: dict[int, Trajectory] = {}
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

    def _trajectory(self, index: int) -> Trajectory:
        if (found := self._trajectories.get(index)) is None:
            span = self._begin("trajectory", self._since_s, index=index)
            found = self._trajectories[index] = Trajectory(span, self._begin("waiting", self._since_s))
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
        self._ended.append(Span(span.name, *ids, span.start_s, now_s, span.attributes, span.events, error))
