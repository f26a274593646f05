"""
The trainer, of one machine or several, and its ranks.

    TRAINER ──Take──▶ BROKER ──Batch──▶ TRAINER ──Stepped──▶ BROKER        first rank ──Work──▶ other ranks
"""

from typing import Literal

from asyncrl.actor.message import Message, Value
from asyncrl.files.checkpoints import FileEntry
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.words import AtFault


class Take(Message, frozen=True):
    """Request the batch of ``step``. The answer to a repeated request is the same batch."""

    step: int


class ScoredTrajectory(Value, frozen=True):
    """One trajectory of a batch: its reward, its metadata and the location of its payload."""

    unit: Unit
    ref: SpoolRef
    reward: float
    metrics: dict[str, float]
    summary: TrajectorySummary
    refused: str = ""
    """Reason for which the trainer refused it before it resumed: it refuses it again. Empty if it did not."""


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


class Refusal(Value, frozen=True):
    """A trajectory of a batch that the trainer left out, with its group, because it is damaged."""

    unit: Unit
    reason: str
    at_fault: AtFault = "rollout"


class Stepped(Message, frozen=True):
    """One optimizer step is done."""

    step: int
    policy_version: int
    """Version of the weights before this step."""
    metrics: dict[str, float]
    refused: list[Refusal] = []
    """Damaged trajectories of the batch: their groups were not trained on."""


class StepFailed(Message, frozen=True):
    """
    Computing a step raised an error, which ends the trainer's process.

    A trainer that is killed, or that loses another process, sends none.
    """

    step: int
    reason: str
    """Type and text of the error."""


class DamagedCheckpoint(Value, frozen=True):
    """A checkpoint that the trainer passed over."""

    checkpoint: str
    """Its folder."""
    cause: str
    """Names the file, and how it differs from what was written."""


class Resumed(Message, frozen=True):
    """The trainer goes on from the newest checkpoint that is intact."""

    steps: int
    """Steps that the checkpoint contains."""
    checkpoint: str
    """Its folder; empty if none is intact, and the run begins with the base model."""
    damaged: list[DamagedCheckpoint] = []
    """Newer ones, the newest first."""


class Commit(Message, frozen=True):
    """A checkpoint contains every step up to ``step``: older payloads may be deleted."""

    step: int
    checkpoint: str


class Evaluating(Message, frozen=True):
    """An evaluation of ``policy_version`` has begun: keep its checkpoint until `Evaluated`."""

    policy_version: int


class TrainerMachine(Value, frozen=True):
    """One machine of a trainer of several: its node, and the name of its host."""

    node: str
    host: str


class Assembled(Message, frozen=True):
    """
    These machines form the trainer; ``machines[0]`` is its first and the run's ``trainer``.

    With R ranks on each machine, ranks ``i R`` to ``i R + R - 1`` run on ``machines[i]``.
    """

    group: int
    """Number of the group, in this life of the broker."""
    machines: list[TrainerMachine]


class Disbanded(Message, frozen=True):
    """The group of machines has ended, and so has this session: end the ranks, and say Hello again."""

    reason: str
    """Names the machine that was lost, its host and its ranks."""


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


class Checked(Message, frozen=True):
    """This rank has fetched its trajectories of ``step``, and refuses these. The step begins when every rank has."""

    step: int
    refused: list[Refusal]


class PartWritten(Message, frozen=True):
    """This rank has written its part of the checkpoint after ``step``; none if it is on another machine."""

    step: int
    files: dict[str, FileEntry]
    """Files by path in the checkpoint."""
