"""
The trainer's side of a transfer.

    model ── stage ─▶ staging buffers ── transfer ─▶ rollouts
      └─ next optimizer step ─────────────────────────▶        at the same time
"""

import threading
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from asyncrl.config import Weights
from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue, Transfer, Transferred
from asyncrl.weights.deadline import Deadline
from asyncrl.weights.epochs import GroupKeeper
from asyncrl.weights.group import Group
from asyncrl.weights.plan import Plan
from asyncrl.weights.staging import Staging, header
from asyncrl.weights.store import Send

NOTHING = -1
"""Said in the header if no complete version is staged."""


class Publisher:
    """
    Keeps a copy of one version and sends it to whomever the broker names.

    Args:
        plan: What moves. Receivers must have an equal one.
        member: Who we are; always ``members[0]``.
        send: `Link.send` of the link to the broker.
        config: Backend and interface.
    """

    def __init__(self, plan: Plan, member: Member, send: Send, config: Weights) -> None:
        self._plan = plan
        self._staging = Staging(plan)
        self._staged = NOTHING
        self._buffers = threading.Lock()
        """Held while the staging buffers are written or read."""
        self._keeper = GroupKeeper(member, send, backend=config.backend, interface=config.interface)

    def stage(self, policy_version: int, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """
        Copy a version out of the model; what was staged before is gone.

        Waits for a transfer that is moving the buffers, so call it from the thread that computes.

        Args:
            policy_version: What the copy is to be called.
            named_tensors: Every tensor of the plan, borrowed. They are cast to the plan's dtypes.

        Raises:
            TransferError: A tensor is missing, unknown, or of another shape. Nothing is staged then.
        """
        with self._buffers, torch.no_grad():
            self._staged = NOTHING
            missing = set(self._staging.tensors)
            for name, tensor in named_tensors:
                self._copy(name, tensor)
                missing.discard(name)
            if missing:
                raise TransferError(f"policy_version {policy_version} lacks {min(missing)}, which the plan has")
            self._staged = policy_version

    async def transfer(self, transfer: Transfer) -> Transferred:
        """
        Send what is staged to the other members.

        Raises:
            TransferError: It was not sent by the deadline, or another version is staged. The epoch is dead then.
        """
        if rank := self._keeper.rank(transfer):
            raise TransferError(f"epoch {transfer.epoch} lists the trainer at rank {rank}; expected 0, it sends")
        seconds = await self._keeper.run(transfer, 0, partial(self._send, transfer.policy_version))
        return Transferred(transfer.epoch, transfer.policy_version, seconds, self._plan.num_bytes)

    def deliver(self, value: StoreValue) -> None:
        """Hand in every `StoreValue` the broker sends."""
        self._keeper.deliver(value)

    async def aclose(self) -> None:
        """End the groups and the thread. A transfer that is moving ends first, by its deadline. Idempotent."""
        await self._keeper.aclose()

    def _copy(self, name: str, tensor: Tensor) -> None:
        target = self._staging.tensors.get(name)
        if target is None:
            raise TransferError(f"{name} is not in the weight plan; expected the tensors it was made of")
        if target.shape != tensor.shape:
            raise TransferError(f"{name} has shape {tuple(tensor.shape)}; the weight plan says {tuple(target.shape)}")
        target.copy_(tensor)

    def _send(self, policy_version: int, group: Group, deadline: Deadline) -> None:
        if not self._buffers.acquire(timeout=deadline.left_s()):
            raise TransferError("another version was being staged all the time")
        try:
            # A receiver that waits for a version we no longer have hears so at once, and does not wait in vain.
            group.broadcast(header(self._staged, self._plan), 0, deadline)
            if self._staged != policy_version:
                raise TransferError(f"policy_version {self._staged} is staged, not {policy_version}")
            for bucket in filter(len, self._staging.buckets):
                group.broadcast(bucket, 0, deadline)
        finally:
            self._buffers.release()
