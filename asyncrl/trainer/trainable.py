"""Contracts of the two collaborators of a `TrainerActor`: the policy in training, and the sender of its weights."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Transfer, Transferred, Uploaded
from asyncrl.trainer.checkpoints.snapshot import Snapshot
from asyncrl.trainer.packing.step import TrainingStep, TrajectoryInfo


class Trainable(Protocol):
    """
    A policy that is trained step by step. `asyncrl.trainer.learner.Learner` is one.

    A policy may have an attribute ``token_ids``, a `TokenIds`: those of trajectories and rollouts are compared with it.
    It may have a ``route_shape``, a `RouteShape`, with which recorded experts are compared.

    The methods are called one at a time, on the actor's compute thread.
    """

    lr: float
    """Learning rate after the warm-up. The actor sets it before each step: `asyncrl set` may have changed it."""

    @property
    def num_computed(self) -> int | None:
        """Micro-batches begun so far, or another number that grows while a step trains; None if nobody can tell."""

    def assign_ranks(self, infos: Sequence[TrajectoryInfo], /) -> list[int]:
        """
        Rank that trains each trajectory of a batch; 0 for all where there is one process.

        Of ``trainer.sequence_parallel`` adjacent ranks, which train the same trajectories, it is the first.
        """

    def train(self, step: TrainingStep, policy_version: int | None, /) -> dict[str, float]:
        """
        Train on one batch.

        Args:
            step: The batch, with the tokens of this rank's trajectories. Without any if every group was damaged: it
                counts as a step, and leaves the weights unchanged.
            policy_version: Version of the current weights; None if they were not published.

        Returns:
            Metrics of the step, ``num_tokens`` (trained completion tokens) among them.
        """

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """The weights to publish, by their names in a checkpoint."""

    def snapshot(self, folder: Path, /) -> Snapshot:
        """All that a checkpoint contains: copies, or files that it has written to ``folder``; see `Snapshot`."""


class Sleepable(Protocol):
    """A policy that can leave its devices to rollouts, on every rank. Implemented beside `Trainable`."""

    def sleep(self) -> int:
        """Move all memory off the devices. Returns the number of bytes moved, once all ranks have."""

    def wake(self) -> None:
        """Undo `sleep`: called before any other method of a policy that sleeps."""


class WeightPublisher(Protocol):
    """Sends weights to rollouts, as `asyncrl.weights.publish.Publisher` and `MemoryPublisher` do."""

    @property
    def num_buckets(self) -> int:
        """Buckets sent in the current or last transfer, by which the broker sees that it goes on; 0 if unknown."""

    def stage(self, policy_version: int, named_tensors: Iterable[tuple[str, Tensor]], /) -> None:
        """Copy a version of the weights; called on the compute thread."""

    async def transfer(self, transfer: Transfer, /) -> Transferred:
        """
        Send a staged version to the members of the transfer.

        Raises:
            TransferError: The version was not sent by the deadline, or is not staged.
        """

    def deliver(self, value: StoreValue, /) -> None:
        """Handle the broker's answer to a rendezvous request of this publisher."""

    def abort(self, abort: Abort, /) -> None:
        """Let the transfer of this group fail now, begun or not. Ignored if it has ended."""


class WeightUploader(Protocol):
    """Puts weights into the spool; `asyncrl.weights.stored.upload.Uploader`."""

    async def upload(self, policy_version: int, /) -> Uploaded:
        """Store a staged version, and say whether it is at the spool."""

    async def upload_anchor(self) -> None:
        """Store the last version once more, complete, if that is due."""
