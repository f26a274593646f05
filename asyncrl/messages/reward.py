"""
Reward nodes.

    BROKER ──Grade──▶ REWARD ──Scored──▶ BROKER
"""

from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Prompt, TrajectoryLimits, TrajectorySummary, Unit
from asyncrl.messages.words import Listed


class GradeItem(Value, frozen=True):
    """One stored trajectory to grade; a failure is reported with its ``lease_id``."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary | None = None
    """Compared with the payload; None compares nothing."""


@sent(by="broker", to="reward")
class Grade(Message, frozen=True):
    """Request to grade stored trajectories of one prompt, each for itself or all `together`."""

    prompt: Prompt
    items: list[GradeItem]
    limits: TrajectoryLimits = TrajectoryLimits()
    """Checked in each payload before it is judged."""
    together: bool = False
    """Items are a whole group, for ``reward.group``: one `Scored` rewards all of them, or one `Failed` none."""


class ScoredItem(Value, frozen=True):
    """The reward of one trajectory."""

    unit: Unit
    reward: float
    metrics: dict[str, float] = {}
    """Further numbers of the verifier; ``correct`` is averaged into accuracy."""
    lease_id: int = 0
    """Copied from the `GradeItem`, to tell several trajectories of one unit apart."""
    answer: str | None = None
    """Answer that the verifier extracted, for majority votes; empty if there was none, None if it extracts none."""


@sent(by="reward", to="broker")
class Scored(Message, frozen=True):
    """Rewards of graded trajectories."""

    items: Listed[ScoredItem]
