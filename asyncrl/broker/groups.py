"""
The trajectories of one prompt, until all have a reward.

    missing ──lease──▶ leased ──Stored──▶ stored ──Scored──▶ scored
       ▲                 │                  │
       └─ expired, failed┘                  └─ no verdict: graded again, or the group is dropped
"""

from enum import Enum

from asyncrl.messages import Prompt, Sample, Split, SpoolRef, Summary, Unit


class State(Enum):
    """Of one index of a group."""

    MISSING = "missing"
    LEASED = "leased"
    STORED = "stored"
    SCORED = "scored"


class Slot:
    """One trajectory to be."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.state = State.MISSING
        self.token = 0
        """Of the lease that covers it, or of the grading under way."""
        self.attempts = 0
        """Failures so far, of generation and of grading."""
        self.ref: SpoolRef | None = None
        self.summary: Summary | None = None
        self.reward = 0.0
        self.metrics: dict[str, float] = {}

    def store(self, ref: SpoolRef, summary: Summary) -> None:
        """Its trajectory is on disk."""
        self.state, self.ref, self.summary = State.STORED, ref, summary

    def judge(self, reward: float, metrics: dict[str, float]) -> None:
        """Its trajectory has a reward."""
        self.state, self.reward, self.metrics = State.SCORED, reward, metrics

    def sample(self) -> Sample:
        """What a batch says of it. Only once scored."""
        if self.ref is None or self.summary is None:
            raise ValueError(f"{self.unit} is not stored")
        return Sample(unit=self.unit, ref=self.ref, reward=self.reward, metrics=self.metrics, summary=self.summary)


class Group:
    """All trajectories of one prompt."""

    def __init__(self, group_id: int, prompt: Prompt, size: int, *, min_version: int, split: Split = "train") -> None:
        self.group_id = group_id
        self.prompt = prompt
        self.split = split
        self.min_version = min_version
        """Live when the group was admitted: nodes behind it get no lease on it."""
        self.slots = [Slot(Unit(group_id, index, split)) for index in range(size)]
        self.num_scored = 0

    def indices(self, state: State) -> list[int]:
        """Which trajectories are in this state."""
        return [slot.unit.index for slot in self.slots if slot.state is state]

    @property
    def is_complete(self) -> bool:
        """Does every trajectory have a reward?"""
        return self.num_scored == len(self.slots)

    @property
    def lengths(self) -> list[int]:
        """[<= size] completion tokens of each trajectory stored so far."""
        return [slot.summary.num_tokens for slot in self.slots if slot.summary]

    def __repr__(self) -> str:
        return f"<Group {self.group_id} {''.join(slot.state.value[:2] + ' ' for slot in self.slots).strip()}>"
