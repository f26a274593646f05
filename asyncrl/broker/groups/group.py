"""
Groups: the trajectories of one prompt from admission until each has a reward, and the book of all open groups.

    missing ──lease──▶ leased ──Stored──▶ stored ──Scored──▶ scored
       ▲                 │                  │
       ├─ lost, failed ──┘                  ├─ grading failed: graded again, left out, or the group is dropped
       └─────────── refused: damaged ───────┘

``ref`` and ``summary`` of a slot describe the part of its trajectory that is on disk. While the slot is missing or
leased this is the last reported progress, and the next lease resumes from it.
"""

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

from asyncrl.broker.nodes.node import name_of
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
from asyncrl.messages.words import AtFault, Split


class SlotState(Enum):
    MISSING = "missing"
    LEASED = "leased"
    STORED = "stored"
    SCORED = "scored"
    GIVEN_UP = "given up"
    """Failed for good: a held-out completion, or one that the trainer refused."""
    LEFT_OUT = "left out"
    """Failed for good, and its training group goes on without it."""


OPEN = (SlotState.MISSING, SlotState.LEASED)
"""States of a trajectory without a result."""


class Slot(Struct, eq=False, gc=False):  # gc=False: in no reference cycle, and ten thousand nodes make a million slots.
    unit: Unit
    state: SlotState = SlotState.MISSING
    lease_id: int = 0
    """Id of the rollout's lease, or of the grading in progress."""
    stored_lease_id: int = 0
    """Lease under which the stored trajectory was sampled; 0 before."""
    attempts: int = 0
    """Failures of this trajectory so far, of generation and of grading."""
    num_refused: int = 0
    """Stored trajectories that were damaged."""
    void_below: int = 0
    """Results of leases with a lower id are ignored, because a result of such a lease was refused as damaged."""
    sampled_by: str = ""
    """Peer of the node that sampled the stored trajectory, if that is known."""
    failed_on: tuple[str, ...] = ()
    """Nodes that failed to sample it, or once it is stored to grade it: others are asked first."""
    doubted_by: tuple[str, ...] = ()
    """Nodes that call the payload damaged or the prompt too long, while another node is asked for its opinion."""
    doubted_at: AtFault = ""
    """Role that all nodes in `doubted_by` hold the damage against; empty if they disagree."""
    ref: SpoolRef | None = None
    summary: TrajectorySummary | None = None
    reward: float = 0.0
    metrics: dict[str, float] = {}
    answer: str | None = None
    """Answer the verifier extracted; None if it reported none."""

    @property
    def correct(self) -> float:
        """The verdict's ``correct``, or the reward of a verdict without it."""
        return self.metrics.get("correct", self.reward)

    @property
    def num_tokens(self) -> int:
        """Completion tokens on disk; 0 if there are none."""
        return self.summary.num_tokens if self.summary else 0

    def lease(self, lease_id: int) -> None:
        self.state, self.lease_id = SlotState.LEASED, lease_id

    def is_leased_by(self, lease_id: int) -> bool:
        return self.state is SlotState.LEASED and self.lease_id == lease_id

    def progress(self, ref: SpoolRef, summary: TrajectorySummary) -> None:
        self.ref, self.summary = ref, summary

    def discard_progress(self) -> None:
        """Forget the part on disk: the next lease samples from the prompt."""
        self.ref = self.summary = None

    def store(self, ref: SpoolRef, summary: TrajectorySummary, lease_id: int = 0, sampled_by: str = "") -> None:
        self.state, self.ref, self.summary, self.stored_lease_id = SlotState.STORED, ref, summary, lease_id
        self.sampled_by, self.failed_on, self.doubted_by = sampled_by, (), ()

    @property
    def sampler(self) -> str:
        """Name of the node that sampled the stored trajectory; empty if it is not known."""
        return name_of(self.sampled_by)

    def ask_others_first(self, name: str) -> None:
        """Note that the node of this name, if that is known, has failed to sample or to grade it."""
        if name and name not in self.failed_on:
            self.failed_on = (*self.failed_on, name)

    def culprit(self, at_fault: AtFault) -> str:
        """Name of the node of this role to hold damage of the payload against; empty if there is none."""
        return self.sampler if at_fault == "rollout" else self.ref.spool if at_fault and self.ref else ""

    def has_result_of(self, lease_id: int) -> bool:
        return bool(lease_id) and self.stored_lease_id == lease_id

    def refuse(self, lease_id: int) -> None:
        """Void a stored trajectory that the grading ``lease_id`` found damaged: the next one begins at the prompt."""
        self.discard_progress()
        self.state, self.num_refused, self.void_below = SlotState.MISSING, self.num_refused + 1, lease_id
        self.stored_lease_id, self.failed_on = 0, (self.sampler,) if self.sampler else ()

    def score(self, reward: float, metrics: dict[str, float], answer: str | None = None) -> None:
        self.state, self.reward, self.metrics, self.answer = SlotState.SCORED, reward, metrics, answer

    def give_up(self) -> None:
        self.state = SlotState.GIVEN_UP

    def leave_out(self) -> None:
        self.discard_progress()
        self.state, self.stored_lease_id = SlotState.LEFT_OUT, 0

    def scored_trajectory(self, refused: str = "") -> ScoredTrajectory:
        """
        Entry of a `Batch` for this slot, with the reason of an earlier refusal; raises ValueError unless it is stored.
        """
        if self.ref is None or self.summary is None:
            raise ValueError(f"{self.unit} is not stored")
        return ScoredTrajectory(
            unit=self.unit,
            ref=self.ref,
            reward=self.reward,
            metrics=self.metrics,
            summary=self.summary,
            refused=refused,
        )


class Group(Struct, eq=False, gc=False):
    group_id: int
    prompt: Prompt
    size: int
    """Number of trajectories, greedy ones included."""
    min_version: int
    """Version that was live when the group was admitted or restarted: only nodes at this version or newer lease it."""
    split: Split = "train"
    num_scored: int = 0
    num_left_out: int = 0
    num_restarts: int = 0
    untrained: str = ""
    """Reason for which the trainer left the group out of its step; empty if it did not."""
    num_greedy: int = 0
    """The last ``num_greedy`` trajectories are decoded greedily, as a baseline for the others; none is trained on."""
    max_tokens: int = 0
    """Longest completion, if it was set while the run went on; 0 takes the one of the configuration."""
    row: int = -1
    """Row of the dataset, of a held-out group that of the held-out one; -1 if it is not known."""
    slots: tuple[Slot, ...] = ()
    """[size] By index. A tuple, because the garbage collector stops tracking tuples of untracked objects."""

    def __post_init__(self) -> None:
        self.slots = tuple([Slot(Unit(self.group_id, index, self.split)) for index in range(self.size)])

    def restart(self, min_version: int) -> None:
        """Discard everything sampled so far. Failures still count: they belong to the prompt."""
        self.min_version = min_version
        self.num_scored = self.num_left_out = 0
        self.num_restarts += 1
        for slot in self.slots:
            slot.discard_progress()
            slot.state, slot.stored_lease_id = SlotState.MISSING, 0

    def indices(self, state: SlotState) -> list[int]:
        return [slot.unit.index for slot in self.slots if slot.state is state]

    @property
    def kept(self) -> tuple[Slot, ...]:
        """Slots of the group, without the trajectories that are left out."""
        return (
            tuple([slot for slot in self.slots if slot.state is not SlotState.LEFT_OUT])
            if self.num_left_out
            else self.slots
        )

    @property
    def sampled(self) -> tuple[Slot, ...]:
        """Slots of the trajectories that are trained on: not left out, and not decoded greedily."""
        kept = self.kept
        return kept[: len(kept) - self.num_greedy]

    @property
    def is_complete(self) -> bool:
        return self.num_scored + self.num_left_out == self.size

    @property
    def lengths(self) -> list[int]:
        """[<= size] completion tokens on disk, of each trajectory that has any."""
        return [slot.summary.num_tokens for slot in self.slots if slot.summary]

    def __repr__(self) -> str:
        return f"<Group {self.group_id} {''.join(slot.state.value[:2] + ' ' for slot in self.slots).strip()}>"


# ── book ──────────────────────────────────────────────────────────────────────────────────────
# The open groups of both splits, and lookup of a unit's group and slot.
#
# A training group is open from admission until it is dropped or no checkpoint needs it any more, a held-out group
# until every completion of it has a reward or was given up.


class GroupBook:
    def __init__(self) -> None:
        self.train: dict[int, Group] = {}
        self.held_out: dict[int, Group] = {}
        self._by_split: dict[Split, dict[int, Group]] = {"train": self.train, "held_out": self.held_out}

    def __iter__(self) -> Iterator[Group]:
        yield from self.train.values()
        yield from self.held_out.values()

    def __bool__(self) -> bool:
        return bool(self.train or self.held_out)

    def add(self, group: Group) -> None:
        self._by_split[group.split][group.group_id] = group

    def remove(self, group: Group) -> None:
        del self._by_split[group.split][group.group_id]

    def group(self, unit: Unit) -> Group | None:
        return self._by_split[unit.split].get(unit.group_id)

    def find(self, unit: Unit) -> tuple[Group, Slot] | tuple[None, None]:
        """Group and slot of ``unit``; None for both if its group is not open or has no such index."""
        group = self._by_split[unit.split].get(unit.group_id)
        return (group, group.slots[unit.index]) if group and 0 <= unit.index < group.size else (None, None)

    def slot(self, unit: Unit) -> Slot | None:
        return self.find(unit)[1]
