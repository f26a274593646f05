"""
Weight transfer inside one process: rollouts receive a reference to the trainer's copy.

    MemoryPublisher.stage(v) ─▶ copy of the tensors ─▶ MemoryReceiver.transfer(v) ─▶ weights()
"""

from collections.abc import Iterable

from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Transfer, Transferred

KEPT_VERSIONS = 2
"""The newest version, and the version before it, which may still be in transfer."""


class MemoryPublisher:
    """Trainer's side; it has the methods of `asyncrl.weights.publish.Publisher` that a `TrainerActor` calls."""

    num_buckets = 0

    def __init__(self) -> None:
        self._versions: dict[int, dict[str, Tensor]] = {}

    def stage(self, policy_version: int, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a version of the model, and drop the oldest kept version."""
        copies = {name: tensor.detach().clone() for name, tensor in named_tensors}
        self._versions = dict([*self._versions.items(), (policy_version, copies)][-KEPT_VERSIONS:])

    def tensors(self, policy_version: int) -> dict[str, Tensor]:
        """Read-only tensors of a version, by name; raises `TransferError` if it is not, or no longer, staged."""
        if policy_version not in self._versions:
            raise TransferError(f"version {policy_version} is not staged; staged are {[*self._versions]}")
        return self._versions[policy_version]

    async def transfer(self, transfer: Transfer) -> Transferred:
        """Report the transfer of a version, which receivers read; raises `TransferError` if it is not staged."""
        num_bytes = sum(tensor.nbytes for tensor in self.tensors(transfer.policy_version).values())
        return Transferred(transfer.transfer_group, transfer.policy_version, 0.0, num_bytes)

    def deliver(self, value: StoreValue) -> None:
        """Ignore a rendezvous: there is no process group."""

    def abort(self, abort: Abort) -> None:
        """Ignore it: a transfer takes no time."""


class MemoryReceiver:
    """Rollout's side: a `WeightReceiver` of a publisher in the same process."""

    def __init__(self, publisher: MemoryPublisher) -> None:
        self._publisher = publisher
        self._tensors: dict[str, Tensor] = {}

    async def transfer(self, transfer: Transfer) -> float:
        """Take a reference to a staged version, in 0 seconds; raises `TransferError` if it is not staged."""
        self._tensors = self._publisher.tensors(transfer.policy_version)
        return 0.0

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the last transfer, by name; do not modify them."""
        return self._tensors

    def deliver(self, value: StoreValue) -> None:
        """Ignore a rendezvous: there is no process group."""

    def abort(self, abort: Abort) -> None:
        """Ignore it: a transfer takes no time."""

    async def aclose(self) -> None:
        self._tensors = {}
