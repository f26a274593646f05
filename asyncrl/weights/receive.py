"""
A rollout's side of a transfer.

    trainer ── transfer ─▶ staging buffers ── weights ─▶ engine.swap
                decoding goes on ────────────▶ pause ─▶ resume
"""

from functools import partial

import torch
from torch import Tensor

from asyncrl.config import Weights
from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue, Transfer
from asyncrl.weights.deadline import Deadline
from asyncrl.weights.epochs import GroupKeeper
from asyncrl.weights.group import Group
from asyncrl.weights.plan import Plan
from asyncrl.weights.staging import HEADER, Staging, check_header
from asyncrl.weights.store import Send


class Receiver:
    """
    Holds the newest version that arrived whole, until the engine takes it.

    Args:
        plan: What moves. The trainer must have an equal one.
        member: Who we are.
        send: `Link.send` of the link to the broker.
        config: Backend and interface.
    """

    def __init__(self, plan: Plan, member: Member, send: Send, config: Weights) -> None:
        self._plan = plan
        self._staging = Staging(plan)
        self._keeper = GroupKeeper(member, send, backend=config.backend, interface=config.interface)
        self.policy_version: int | None = None
        """What lies in the staging buffers; None before the first transfer, during one, and after a broken one."""

    async def transfer(self, transfer: Transfer) -> float:
        """
        Receive a version into the staging buffers, over the one that was there.

        Returns:
            Seconds from the call to the last byte.

        Raises:
            TransferError: It did not arrive whole by the deadline. The epoch is dead then.
        """
        rank = self._keeper.rank(transfer)
        if rank == 0:
            raise TransferError(f"epoch {transfer.epoch} lists a receiver at rank 0, where the trainer belongs")
        seconds = await self._keeper.run(transfer, rank, partial(self._receive, transfer.policy_version))
        self.policy_version = transfer.policy_version
        return seconds

    def weights(self) -> dict[str, Tensor]:
        """
        Views into the staging buffers, by name: borrowed until the next `transfer` begins.

        Raises:
            TransferError: There is no complete version.
        """
        if self.policy_version is None:
            raise TransferError("no complete policy version is staged; a transfer must succeed first")
        return self._staging.tensors

    def deliver(self, value: StoreValue) -> None:
        """Hand in every `StoreValue` the broker sends."""
        self._keeper.deliver(value)

    async def aclose(self) -> None:
        """End the groups and the thread. A transfer that is moving ends first, by its deadline. Idempotent."""
        await self._keeper.aclose()

    def _receive(self, policy_version: int, group: Group, deadline: Deadline) -> None:
        announced = torch.empty(HEADER.size, dtype=torch.uint8)
        group.broadcast(announced, 0, deadline)
        check_header(announced, policy_version, self._plan)
        self.policy_version = None
        for bucket in filter(len, self._staging.buckets):
            group.broadcast(bucket, 0, deadline)
