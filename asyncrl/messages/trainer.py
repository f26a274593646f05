"""
The trainer, of one machine or several, and its ranks.

    TRAINER ──Take──▶ BROKER ──Batch──▶ TRAINER ──Stepped──▶ BROKER        first rank ──Work──▶ other ranks
"""

from typing import Literal, Self

from msgspec.structs import replace

from asyncrl.files.checkpoints import FileEntry
from asyncrl.foreign_text import shown
from asyncrl.messages import bounds
from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.words import AtFault


@sent(by="trainer", to="broker")
class Take(Message, frozen=True):
    """Request the batch of ``step``. The answer to a repeated request is the same batch."""

    step: int

    def out_of_bounds(self) -> str:
        return bounds.count("step", self.step)


class ScoredTrajectory(Value, frozen=True):
    """One trajectory of a batch: its reward, its metadata and the location of its payload."""

    unit: Unit
    ref: SpoolRef
    reward: float
    metrics: dict[str, float]
    summary: TrajectorySummary
    refused: str = ""
    """Reason for which the trainer refused it before it resumed: it refuses it again. Empty if it did not."""


@sent(by="broker", to="trainer")
@sent(by="trainer", to="shard")
class Batch(Message, frozen=True):
    """Answer to `Take`: whole groups in order, the trajectories of a group together."""

    step: int
    trajectories: list[ScoredTrajectory]
    lr: float | None = None
    """``trainer.lr`` of the step, the same however often it is asked for; None takes that of the configuration."""
    ledger_records: int = 0
    """Records that the ledger had on disk when this was sent."""
    ledger_head: str = ""
    """Digest of these records, for the manifests of checkpoints."""


@sent(by="broker", to="trainer")
class Shortened(Message, frozen=True):
    """The run ends after fewer steps than it was to have: no batch follows them. They end a policy version."""

    steps: int


class Refusal(Value, frozen=True):
    """A trajectory of a batch that the trainer left out, with its group, because it is damaged."""

    unit: Unit
    reason: str
    at_fault: AtFault = "rollout"


@sent(by="trainer", to="broker")
class Stepped(Message, frozen=True):
    """One optimizer step is done."""

    step: int
    policy_version: int
    """Version of the weights before this step."""
    metrics: dict[str, float]
    refused: list[Refusal] = []
    """Damaged trajectories of the batch: their groups were not trained on."""

    def out_of_bounds(self) -> str:
        if len(self.metrics) > bounds.MAX_METRICS:
            return f"there are {len(self.metrics)} metrics"
        long = (name for name in self.metrics if len(name) > bounds.MAX_NAME_CHARS)
        return (
            bounds.count("step", self.step)
            or ("" if self.policy_version >= -1 else f"policy_version is {self.policy_version}")
            or next((f"a metric's name has {len(name)} characters" for name in long), "")
        )

    def as_shown(self) -> Self:
        metrics = {shown(name): value for name, value in self.metrics.items()}
        refused = [replace(refusal, reason=bounds.shown(refusal.reason)) for refusal in self.refused]
        return replace(self, metrics=metrics, refused=refused)


@sent(by="trainer", to="broker", shown="reason")
class StepFailed(Message, frozen=True):
    """
    Computing a step raised an error, which ends the trainer's process.

    A trainer that is killed, or that loses another process, sends none.
    """

    step: int
    reason: str
    """Type and text of the error."""

    def out_of_bounds(self) -> str:
        return bounds.count("step", self.step) or bounds.reason(self.reason)


class DamagedCheckpoint(Value, frozen=True):
    """A checkpoint that the trainer passed over."""

    checkpoint: str
    """Checkpoint folder."""
    cause: str
    """Names the file, and how it differs from what was written."""


@sent(by="trainer", to="broker")
class Resumed(Message, frozen=True):
    """The trainer goes on from the newest checkpoint that is intact."""

    steps: int
    """Steps that the checkpoint contains."""
    checkpoint: str
    """Checkpoint folder; empty if none is intact, and the run begins with the base model."""
    damaged: list[DamagedCheckpoint] = []
    """Newer ones, the newest first."""

    def out_of_bounds(self) -> str:
        if (number := len(self.damaged)) > bounds.MAX_CHECKPOINTS:
            return f"there are {number} damaged checkpoints"
        texts = [self.checkpoint, *(text for one in self.damaged for text in (one.checkpoint, one.cause))]
        too_long = (found for text in texts if (found := bounds.reason(text)))
        return bounds.count("steps", self.steps) or next(too_long, "")

    def as_shown(self) -> Self:
        return replace(self, damaged=[replace(one, cause=bounds.shown(one.cause)) for one in self.damaged])


@sent(by="trainer", to="broker")
class Commit(Message, frozen=True):
    """A checkpoint contains every step up to ``step``: older payloads may be deleted."""

    step: int
    checkpoint: str

    def out_of_bounds(self) -> str:
        return bounds.count("step", self.step)


@sent(by="broker", to="trainer")
class Evaluating(Message, frozen=True):
    """An evaluation of ``policy_version`` has begun: keep its checkpoint until `Evaluated`."""

    policy_version: int


class TrainerMachine(Value, frozen=True):
    """One machine of a trainer of several: its node, and the name of its host."""

    node: str
    host: str


@sent(by="broker", to=("trainer", "machine"))
class Assembled(Message, frozen=True):
    """
    These machines form the trainer; ``machines[0]`` is its first and the run's ``trainer``.

    With R ranks on each machine, ranks ``i R`` to ``i R + R - 1`` run on ``machines[i]``.
    """

    group: int
    """Number of the group, in this life of the broker."""
    machines: list[TrainerMachine]


@sent(by="broker", to=("trainer", "machine"))
class Disbanded(Message, frozen=True):
    """The group of machines has ended, and so has this session: end the ranks, and say Hello again."""

    reason: str
    """Names the machine that was lost, its host and its ranks."""


@sent(by="trainer", to="shard")
class Work(Message, frozen=True):
    """
    Request to take part in a collective operation of all ranks. `Batch` precedes the step that trains on it.

    ``train``: the next step. ``gather``: the weights, for a publish. ``snapshot``: the contents of a checkpoint.
    ``sleep``, ``wake``: the devices are for rollouts, and for the trainer again.
    """

    kind: Literal["train", "gather", "snapshot", "sleep", "wake"]
    step: int
    policy_version: int | None = None
    """Version of the weights at the beginning of the step; None if they were not published."""
    left_out: list[int] = []
    """Groups of the batch that no rank trains on, because one of their trajectories was refused."""
    lr: float | None = None
    """``train``: ``trainer.lr`` of the step; None keeps the rank's."""


@sent(by="shard", to="trainer")
class Checked(Message, frozen=True):
    """This rank has fetched its trajectories of ``step``, and refuses these. The step begins when every rank has."""

    step: int
    refused: list[Refusal]
    problem: str = ""
    """Cause for which the step is impossible on this rank; empty if it is possible."""


@sent(by="shard", to="trainer")
class PartWritten(Message, frozen=True):
    """This rank has written its part of the checkpoint after ``step``; none if it is on another machine."""

    step: int
    files: dict[str, FileEntry]
    """Files by path in the checkpoint."""
