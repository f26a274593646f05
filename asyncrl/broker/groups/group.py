"""
The trajectories of one prompt, until all have a reward.

    missing ──lease──▶ leased ──Stored──▶ stored ──Scored──▶ scored
       ▲                 │                  │
       └─ lost, failed ──┘                  └─ no verdict: graded again, or the group is dropped

What is on disk of a trajectory is ``ref`` and ``summary``: of one that is not stored yet, as far as it was written when
its node last said so. Whoever samples it next goes on from there.
"""

from enum import Enum

from msgspec import Struct

from asyncrl.messages import Prompt, ScoredTrajectory, Split, SpoolRef, TrajectorySummary, Unit


class State(Enum):
    """Of one index of a group."""

    MISSING = "missing"
    LEASED = "leased"
    STORED = "stored"
    SCORED = "scored"
    GIVEN_UP = "given up"
    """Failed for good. Only of a held-out group: one to train on is dropped with it."""


class Slot(Struct, eq=False, gc=False):  # In no cycle, and with ten thousand nodes there are a million of them.
    """One trajectory to be."""

    unit: Unit
    state: State = State.MISSING
    lease_id: int = 0
    """Of the lease that covers it, or of the grading under way."""
    attempts: int = 0
    """Failures so far, of generation and of grading."""
    ref: SpoolRef | None = None
    summary: TrajectorySummary | None = None
    """What is on disk of it."""
    reward: float = 0.0
    metrics: dict[str, float] = {}
    answer: str | None = None
    """What the verifier took for the answer, if it says that."""

    def lease(self, lease_id: int) -> None:
        """A node samples it."""
        self.state, self.lease_id = State.LEASED, lease_id

    def is_leased_by(self, lease_id: int) -> bool:
        """Is this the lease it is sampled under?"""
        return self.state is State.LEASED and self.lease_id == lease_id

    def progress(self, ref: SpoolRef, summary: TrajectorySummary) -> None:
        """So much of its trajectory is on disk, and more is being written."""
        self.ref, self.summary = ref, summary

    def begin_anew(self) -> None:
        """What is on disk of it is not to be gone on from."""
        self.ref = self.summary = None

    def store(self, ref: SpoolRef, summary: TrajectorySummary) -> None:
        """Its trajectory is on disk."""
        self.state, self.ref, self.summary = State.STORED, ref, summary

    def judge(self, reward: float, metrics: dict[str, float], answer: str | None = None) -> None:
        """Its trajectory has a reward."""
        self.state, self.reward, self.metrics, self.answer = State.SCORED, reward, metrics, answer

    def give_up(self) -> None:
        """It has no trajectory or no verdict, and gets none."""
        self.state = State.GIVEN_UP

    def sample(self) -> ScoredTrajectory:
        """What a batch says of it. Only once scored."""
        if self.ref is None or self.summary is None:
            raise ValueError(f"{self.unit} is not stored")
        return ScoredTrajectory(
            unit=self.unit, ref=self.ref, reward=self.reward, metrics=self.metrics, summary=self.summary
        )


class Group(Struct, eq=False, gc=False):
    """All trajectories of one prompt."""

    group_id: int
    prompt: Prompt
    size: int
    """Trajectories, greedy ones included."""
    min_version: int
    """Live when the group was admitted, or began anew: nodes behind it get no lease on it."""
    split: Split = "train"
    num_scored: int = 0
    num_restarts: int = 0
    """How often it has begun anew."""
    num_greedy: int = 0
    """The last so many are decoded greedily: the others are compared with them, and they are not trained on."""
    slots: tuple[Slot, ...] = ()
    """[size] By index. A tuple, because the collector gives up on tuples of what it does not look at."""

    def __post_init__(self) -> None:
        self.slots = tuple([Slot(Unit(self.group_id, index, self.split)) for index in range(self.size)])

    def begin_anew(self, min_version: int) -> None:
        """All that was sampled of it is void. Failures still count: they are the prompt's."""
        self.min_version = min_version
        self.num_scored = 0
        self.num_restarts += 1
        for slot in self.slots:
            slot.begin_anew()
            slot.state = State.MISSING

    def indices(self, state: State) -> list[int]:
        """Which trajectories are in this state."""
        return [slot.unit.index for slot in self.slots if slot.state is state]

    @property
    def sampled(self) -> tuple[Slot, ...]:
        """Those that are trained on."""
        return self.slots[: self.size - self.num_greedy]

    @property
    def is_complete(self) -> bool:
        """Does every trajectory have a reward?"""
        return self.num_scored == self.size

    @property
    def lengths(self) -> list[int]:
        """[<= size] completion tokens on disk, of each trajectory that has any."""
        return [slot.summary.num_tokens for slot in self.slots if slot.summary]

    def __repr__(self) -> str:
        return f"<Group {self.group_id} {''.join(slot.state.value[:2] + ' ' for slot in self.slots).strip()}>"
