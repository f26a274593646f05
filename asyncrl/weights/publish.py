"""
The trainer's side of a transfer.

    model ── stage ─▶ staging buffers ── transfer ─▶ rollouts
      └─ next optimizer step ── stage ─▶ other buffers         at the same time
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from asyncrl.config.addresses import LOOPBACK
from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, Transferred
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.header import NO_VERSION, Header
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.copies import Copies
from asyncrl.weights.exchange import Channel, SendStats, send
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.group import CPU, Group
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.store import Send
from asyncrl.weights.staging import Staging
from asyncrl.weights.window import Window

NO_GROUP = -1


class Publisher:
    """
    Keeps copies of the newest versions and sends them to the members that the broker names.

    The version before the newest is kept until another is staged, because it may still be being sent. With
    ``weights.delta``, a third copy holds the version of the receivers, and the second and later transfers of a
    transfer group send only the changes since.

    Args:
        layout: The tensors to send; receivers must have an equal layout.
        member: This node; always ``members[0]`` of a transfer.
        interface: Address of this machine on which it connects to the receivers.
        device: Device from which the group sends, through two buffers of a bucket each if it is not the CPU.
        beside: Device of the model.
    """

    def __init__(
        self,
        layout: Layout,
        member: Member,
        send: Send,
        config: Weights,
        *,
        interface: str = LOOPBACK,
        device: torch.device = CPU,
        beside: torch.device = CPU,
    ) -> None:
        self._layout = layout
        self._config = config
        self._device = device
        # first, because it makes the device usable
        self._keeper = GroupKeeper(member, send, config, interface=interface, device=device)
        on_device = device.type != "cpu"
        self.copies = Copies(layout, CPU, keeps_base=config.delta, beside=device if on_device else beside)
        """The staged versions, in host memory."""
        self._windows = [Window(layout, device) for _ in range(1 + config.delta)] if on_device else []
        self._checksum = Checksum(device)
        self._transfer_group = NO_GROUP
        """Group whose members hold the kept copy: the group of the last completed transfer with ``keep``."""
        self._stats = SendStats()
        self.changed_fraction: float | None = None
        """Share of elements whose bits changed in the last transfer; None if it sent whole buckets."""

    @property
    def num_buckets(self) -> int:
        """Buckets sent in the current or last transfer."""
        return self._stats.num_buckets

    def stage(self, policy_version: int, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """
        Copy a version of the model over the oldest copy. A running transfer is not disturbed.

        Blocks only while the version before the newest is being sent, so call it from the thread that trains.

        Args:
            policy_version: Must be unique.
            named_tensors: Every tensor of the layout; cast to the layout's dtypes.

        Raises:
            TransferError: A tensor is missing, unknown, or of another shape. Staged versions are unchanged.
        """
        with self.copies.write(policy_version) as staging, torch.no_grad():
            missing = set(staging.tensors)
            for name, tensor in named_tensors:
                _copy(name, tensor, staging)
                missing.discard(name)
            if missing:
                raise TransferError(f"version {policy_version} lacks {min(missing)} of the weight layout")

    async def transfer(self, transfer: Transfer) -> Transferred:
        """
        Send one of the two newest versions to the other members.

        Raises:
            TransferError: The version was not sent by the deadline, or is not staged. The transfer group is dead.
        """
        if rank := self._keeper.rank(transfer):
            raise TransferError(
                f"transfer group {transfer.transfer_group} lists the trainer at rank {rank}; expected rank 0"
            )
        stats = self._stats = SendStats()
        seconds = await self._keeper.run(transfer, 0, partial(self._send, transfer, stats))
        return Transferred(transfer.transfer_group, transfer.policy_version, seconds, stats.num_bytes)

    def deliver(self, value: StoreValue) -> None:
        self._keeper.deliver(value)

    def abort(self, abort: Abort) -> None:
        """Give up the transfer of a group; see `GroupKeeper.abort`."""
        self._keeper.abort(abort)

    async def aclose(self) -> None:
        """Abort a running transfer, and close the groups and the thread. Idempotent."""
        await self._keeper.aclose()

    # ── on the thread ───────────────────────────────────────────────────────────────────────

    def _send(self, transfer: Transfer, stats: SendStats, group: Group, deadline: Deadline) -> None:
        version, channel = transfer.policy_version, Channel(group, deadline)
        is_new_group = transfer.transfer_group != self._transfer_group
        base_version, base = (None if is_new_group else self.copies.kept()) or (NO_VERSION, None)
        is_checked = self._config.verify or is_new_group or base is not None
        with self.copies.read(version) as staging:
            newest = version if staging else self.copies.newest
            channel.broadcast(Header(newest, self._layout.hash, base_version, is_checked).encode(self._device))
            if staging is None:  # The receivers see it in the header and do not wait.
                raise TransferError(f"version {newest} is staged, not {version}")
            checksum = self._checksum if is_checked else None
            buckets, *bases = self._sent(staging, *([base] if base else []))
            send(channel, self._layout, buckets, base=bases[0] if bases else None, checksum=checksum, stats=stats)
            num_items = self._layout.num_items
            self.changed_fraction = stats.num_changed / num_items if base and num_items else None
            if transfer.keep:
                self._transfer_group = transfer.transfer_group
                if self._config.delta:
                    self.copies.keep(version)

    def _sent(self, *versions: Staging) -> list[Iterable[Tensor]]:
        """Buckets of versions on the device from which the group sends."""
        if not self._windows:
            return [version.buckets for version in versions]
        return [window.buckets(version) for window, version in zip(self._windows, versions, strict=False)]


def _copy(name: str, tensor: Tensor, staging: Staging) -> None:
    target = staging.tensors.get(name)
    if target is None:
        raise TransferError(f"{name} is not in the weight layout")
    if target.shape != tensor.shape:
        raise TransferError(f"{name} has shape {tuple(tensor.shape)}; the weight layout has {tuple(target.shape)}")
    target.copy_(tensor)
