"""
The supervisor, and operators, who join as one: what they learn of a run, and what they ask of it.

    SUPERVISOR ──StatusWanted──▶ BROKER ──Status──▶ SUPERVISOR
"""

from typing import Literal, Self

from msgspec.structs import replace

from asyncrl.foreign_text import shown_lines
from asyncrl.messages import bounds
from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.session import ContainerCounts
from asyncrl.messages.words import Listed, Role, UnreadyState
from asyncrl.workers.stacks import MAX_CHARS as MAX_STACKS_CHARS


@sent(by="supervisor", to="broker", shown="cause")
class Exited(Message, frozen=True):
    """A child process of the supervisor ended."""

    node: str
    cause: str
    restarting: bool
    is_needed: bool = True
    """False if the run can go on without this node."""

    def out_of_bounds(self) -> str:
        return bounds.reason(self.cause)


@sent(by="broker", to="supervisor")
class Returned(Message, frozen=True):
    """A node that `Exited` told about is back, to the supervisor that started it again."""

    node: str
    away_s: float
    step: int = -1
    """Trainers: steps that its checkpoint has, from which it goes on; -1 for other roles."""


@sent(by="supervisor", to="broker", shown="cause")
class Interrupt(Message, frozen=True):
    """End the run early: the trainer saves a checkpoint, rollouts store unfinished trajectories."""

    cause: str = ""
    """Reason; empty if somebody asked for it."""

    def out_of_bounds(self) -> str:
        return bounds.reason(self.cause)


@sent(by="broker", to="supervisor")
class Finished(Message, frozen=True):
    """The run is over."""

    status: Literal["finished", "failed", "interrupted"]
    cause: str


@sent(by="broker", to="supervisor")
class Progress(Message, frozen=True):
    """Metrics of one step, for display."""

    step: int
    """Counted from 0."""
    steps: int
    metrics: dict[str, float]


@sent(by="broker", to=("trainer", "supervisor"))
class Evaluated(Message, frozen=True):
    """Result of an evaluation: held-out accuracy of one version."""

    policy_version: int
    accuracy: float
    num_prompts: int
    metrics: dict[str, float] = {}

    @property
    def by_name(self) -> dict[str, float]:
        """All metrics, ``accuracy`` among them."""
        return {"accuracy": self.accuracy, **self.metrics}

    @property
    def num_failed(self) -> int:
        """Completions that failed, and are in no other number."""
        return int(self.metrics.get("failed", 0))


@sent(by="broker", to="supervisor")
class Failures(Message, frozen=True):
    """Failed units of the run so far, for display; sent when the counts change."""

    counts: dict[str, int]
    """Number of each cause, ``stage: reason``, most frequent first."""
    attempts: dict[str, int] = {}
    """Attempts by stage, the failed ones included."""


@sent(by="broker", to="supervisor")
class Notice(Message, frozen=True):
    """A sentence for the person at the screen: what a long silence is about, or a node without progress."""

    sentence: str


@sent(by="broker", to="supervisor")
class Drained(Message, frozen=True):
    """Answer to `Drain`: the node has left."""

    node: str
    problem: str = ""
    """Reason for which it did not leave as requested; empty if it did."""
    is_refused: bool = False
    """True if it was not asked to leave: there is no such node, or it cannot be drained."""


@sent(by="supervisor", to="broker")
class Admit(Message, frozen=True):
    """Request to give a barred node work again, answered by `AdmitReply`."""

    node: str


@sent(by="broker", to="supervisor")
class AdmitReply(Message, frozen=True):
    """Answer to `Admit`."""

    node: str
    problem: str = ""
    """Reason for which nothing was changed; empty if it gets work again."""


ToldState = Literal[UnreadyState, "working", "waiting"]
"""State of a connected node as the broker tells it; `asyncrl.records.states` has the meaning of each."""


class NodeStatus(Value, frozen=True):
    """State of one connected node, as the broker knows it."""

    node: str
    role: Role
    state: ToldState
    waits_for: str = ""
    """Reason of ``waiting`` in words, such as ``the trainer: the window is full``, or of ``barred``; else empty."""
    policy_version: int = -1
    """Rollouts: version that the engine decodes with; -1 before the first weights, and for other roles."""
    leases: int = 0
    trajectories: int = 0
    """Trajectories leased to a rollout, or being graded by a reward node."""
    tokens_per_s: float = 0.0
    """Tokens sampled or trained per second, averaged over about ten seconds."""
    lag_s: float = 0.0
    """Delay of its event loop at its last beat, in seconds."""
    silent_s: float = 0.0
    """Seconds since it was last heard."""
    still: str = ""
    """Activity without progress, such as ``sampling for 31 s without a token``; empty for a few seconds."""
    containers: ContainerCounts | None = None
    """Rollouts whose episodes have containers."""


AbsentState = Literal["lost", "exited", "silent", "left"]


class AbsentNode(Value, frozen=True):
    """A node whose place no other has taken; one that left on purpose only while nobody of its role is there."""

    node: str
    role: str
    state: AbsentState
    """``silent`` if it has not joined the broker that was started since."""
    cause: str
    ago_s: float | None
    """Seconds since then; None if no event tells."""


class Incident(Value, frozen=True):
    """Death, drop, failure or wait, in one sentence; the same one again is counted."""

    sentence: str
    ago_s: float
    """Seconds since the last time."""
    count: int = 1


@sent(by="supervisor", to="broker")
class StatusWanted(Message, frozen=True):
    """Request for the state of the run, answered by `Status`."""


@sent(by="broker", to="supervisor")
class Status(Message, frozen=True):
    """Answer to `StatusWanted`: the state of the run by the broker's books."""

    run: str
    """Name of the run directory."""
    state: Literal["running", "paused", "ending"]
    step: int
    """Steps that got a batch."""
    steps: int
    policy_version: int
    """Live version; -1 before the first."""
    window: int
    """Most groups that may be open."""
    open_groups: int
    group_size: int
    groups: dict[str, int]
    """Open groups by state: ``unleased``, ``sampling``, ``grading``, ``complete``, ``taken``."""
    nodes: list[NodeStatus]
    time_s: float = 0.0
    """Duration of the run in seconds."""
    incidents: list[Incident] = []
    """Last deaths, drops and failures, the newest first."""
    metrics: dict[str, float] = {}
    """Metrics of the last step; empty before the first."""
    accuracy: float | None = None
    """Held-out accuracy of the last evaluation; None before the first."""
    base_accuracy: float | None = None
    """Held-out accuracy before the first step."""
    notes: list[str] = []
    """Sentences on the run as a whole, such as its pause."""
    accuracy_failed: int = 0
    """Completions of the last evaluation that failed, and are not in its accuracy."""
    held_out_reward: float | None = None
    """Mean reward of the last evaluation; None if it is the accuracy."""
    absent: list[AbsentNode] = []
    """Nodes that are away, the longest away first."""


@sent(by="supervisor", to="broker")
class Pause(Message, frozen=True):
    """
    Grant rollouts no new leases, neither of training prompts nor of an evaluation's, or grant them again. What is in
    hand goes on. Answered by `Paused`.
    """

    is_paused: bool


@sent(by="broker", to="supervisor")
class Paused(Message, frozen=True):
    """Answer to `Pause`, to every supervisor: sampling is paused or goes on, and that is on disk."""

    is_paused: bool
    by: str
    """Supervisor that asked for it."""


@sent(by="supervisor", to="broker")
class SetSettings(Message, frozen=True):
    """Set live settings while the run goes on. Answered by `SettingsChanged`."""

    assignments: Listed[str]
    """``key=value`` texts, as of ``--set``; all of them count, or none."""


@sent(by="broker", to="supervisor")
class SettingsChanged(Message, frozen=True):
    """Answer to `SetSettings`, to every supervisor: live settings have changed, and that is on disk."""

    values: dict[str, bool | int | float | str]
    """New values by full key; without those that were so already."""
    by: str
    """Supervisor that set them."""
    problem: str = ""
    """Reason for which nothing was changed, to that supervisor alone."""


@sent(by="supervisor", to="broker")
@sent(by="broker", to=("rollout", "reward", "trainer"))
class StacksWanted(Message, frozen=True):
    """To the broker: ask ``node`` for its `Stacks`. To the node: answer with them."""

    node: str


@sent(by=("rollout", "reward", "trainer"), to="broker")
@sent(by="broker", to="supervisor")
class Stacks(Message, frozen=True):
    """Stacks of the threads and asyncio tasks of a node, to the broker, and from it to who asked."""

    node: str
    text: str
    problem: str = ""
    """Reason for which there are none; empty if there are."""

    def out_of_bounds(self) -> str:
        num_chars = len(self.text)
        return f"text has {num_chars} characters" if num_chars > 2 * MAX_STACKS_CHARS else ""

    def as_shown(self) -> Self:
        return replace(self, text=shown_lines(self.text), problem=bounds.shown(self.problem))
