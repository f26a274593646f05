"""
The trainer's side of a transfer.

    model ── stage ─▶ staging buffers ── transfer ─▶ rollouts
      └─ next optimizer step ── stage ─▶ more of them          at the same time
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from asyncrl.config.sections import Weights
from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue, Transfer, Transferred
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.header import NOTHING, Header
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.copies import Copies
from asyncrl.weights.exchange import Channel, Sent, send
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.group import CPU, Group
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.store import Send
from asyncrl.weights.staging import Staging

NO_GROUP = -1


class Publisher:
    """
    Keeps copies of the newest versions and sends them to whomever the broker names.

    The version before the newest stays until another is staged, so that it can still be moving then. With
    ``weights.delta`` a third copy holds what the receivers have, and only what changed since is sent: to the members
    of an epoch, from its second transfer on.

    Args:
        plan: What moves. Receivers must have an equal one.
        member: Who we are; always ``members[0]``.
        send: `Link.send` of the link to the broker.
        config: Backend, interface, and how to send.
        device: Where the copies lie: what the backend can send from.
    """

    def __init__(
        self, plan: Layout, member: Member, send: Send, config: Weights, *, device: torch.device = CPU
    ) -> None:
        self._plan = plan
        self._config = config
        self._device = device
        self._keeper = GroupKeeper(
            member, send, backend=config.backend, interface=config.interface, device=device
        )  # first of all: it makes the device usable
        self._copies = Copies(plan, device, keeps_base=config.delta)
        self._checksum = Checksum(device)
        self._transfer_group = NO_GROUP
        """Whose members have the kept copy: that of the last transfer to all that was sent whole."""
        self.changed_fraction: float | None = None
        """Share of elements whose bits were not those of the version before, in the last transfer; None: all went."""

    def stage(self, policy_version: int, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """
        Copy a version out of the model, over the oldest there is. What is moving meanwhile goes on.

        Waits only if the version before the newest is still moving, so call it from the thread that computes.

        Args:
            policy_version: What the copy is to be called; no number comes twice.
            named_tensors: Every tensor of the plan, borrowed. They are cast to the plan's dtypes.

        Raises:
            TransferError: A tensor is missing, unknown, or of another shape. What was staged before stays.
        """
        with self._copies.write(policy_version) as staging, torch.no_grad():
            missing = set(staging.tensors)
            for name, tensor in named_tensors:
                _copy(name, tensor, staging)
                missing.discard(name)
            if missing:
                raise TransferError(f"policy_version {policy_version} lacks {min(missing)}, which the plan has")

    async def transfer(self, transfer: Transfer) -> Transferred:
        """
        Send one of the two newest versions to the other members.

        Returns:
            With ``num_bytes`` of weights as they travelled.

        Raises:
            TransferError: It was not sent by the deadline, or is not staged. The epoch is dead then.
        """
        if rank := self._keeper.rank(transfer):
            raise TransferError(
                f"epoch {transfer.transfer_group} lists the trainer at rank {rank}; expected 0, it sends"
            )
        sent = Sent()
        seconds = await self._keeper.run(transfer, 0, partial(self._send, transfer, sent))
        return Transferred(transfer.transfer_group, transfer.policy_version, seconds, sent.num_bytes)

    def deliver(self, value: StoreValue) -> None:
        """Hand in every `StoreValue` the broker sends."""
        self._keeper.deliver(value)

    async def aclose(self) -> None:
        """End the groups and the thread. A transfer that is moving ends first, by its deadline. Idempotent."""
        await self._keeper.aclose()

    # ── on the thread ───────────────────────────────────────────────────────────────────────

    def _send(self, transfer: Transfer, sent: Sent, group: Group, deadline: Deadline) -> None:
        version, channel = transfer.policy_version, Channel(group, deadline)
        is_first = transfer.transfer_group != self._transfer_group
        base_version, base = (None if is_first else self._copies.kept()) or (NOTHING, None)
        is_checked = self._config.verify or is_first or base is not None
        with self._copies.read(version) as staging:
            newest = version if staging else self._copies.newest
            channel.move(Header(newest, self._plan.hash, base_version, is_checked).encode(self._device))
            if staging is None:  # Receivers hear so at once, and do not wait in vain.
                raise TransferError(f"policy_version {newest} is staged, not {version}")
            checksum = self._checksum if is_checked else None
            send(channel, self._plan, staging, base=base, checksum=checksum, sent=sent)
            self.changed_fraction = sent.num_changed / self._plan.num_items if base and self._plan.num_items else None
            if transfer.keep:
                self._transfer_group = transfer.transfer_group
                if self._config.delta:
                    self._copies.keep(version)


def _copy(name: str, tensor: Tensor, staging: Staging) -> None:
    target = staging.tensors.get(name)
    if target is None:
        raise TransferError(f"{name} is not in the weight plan; expected the tensors it was made of")
    if target.shape != tensor.shape:
        raise TransferError(f"{name} has shape {tuple(tensor.shape)}; the weight plan says {tuple(target.shape)}")
    target.copy_(tensor)
