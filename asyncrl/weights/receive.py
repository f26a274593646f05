"""
A rollout's side of a transfer.

    trainer ── transfer ─▶ [two buckets on a device] ─▶ staging buffers on the host ── weights ─▶ engine.swap
                decoding continues ───────────────────────────────────────────▶ pause ─▶ resume

    trainer ── transfer ─▶ one bucket ── on_bucket ─▶ engine, bucket by bucket        for models too big to stage
                decoding is paused throughout
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from asyncrl.config.addresses import LOOPBACK
from asyncrl.config.sections.weights import Weights
from asyncrl.errors import ConfigError, TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer
from asyncrl.weights.contents import header
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.header import NO_VERSION
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import Channel, receive
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.group import CPU, Group
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.store import Send
from asyncrl.weights.staging import Staging
from asyncrl.weights.window import Window

OnBucket = Callable[[Mapping[str, Tensor]], None]
"""Consumes the tensors of one bucket, by name. They are overwritten after it returns."""


class Receiver:
    """
    Holds the newest complete version until the engine loads it.

    With ``weights.staging = "bucket"`` it holds a single bucket, and the engine loads each bucket on arrival. A failed
    transfer then leaves the engine with a mix of old, new and possibly damaged weights: the engine must not decode
    during a transfer, nor after a failed one until a later transfer succeeds.

    Args:
        layout: The tensors to receive; the trainer must have an equal layout.
        interface: Address of this machine on which it connects to the trainer.
        device: Device into which the backend receives: through two buffers of a bucket each if it is not the CPU.
        beside: Device of the engine's model.
        local_rank: Index of this process among the member's processes.
        on_bucket: Given with ``staging = "bucket"``, and only then. Called on the receiving thread with the tensors of
            each bucket, views into the buffer, in the layout's order. It must have finished reading them, on the
            device too, when it returns.
        staging: Host memory for whole versions, of an equal layout; None allocates it.

    Raises:
        ConfigError: ``on_bucket`` does not fit ``weights.staging``.
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
        local_rank: int = 0,
        on_bucket: OnBucket | None = None,
        staging: Staging | None = None,
    ) -> None:
        if (config.staging == "bucket") != (on_bucket is not None):
            raise ConfigError(
                f"weights.staging is {config.staging!r}, but the engine loads "
                f"{'single buckets' if on_bucket else 'whole versions'}"
            )
        # constructed first, because it makes the device usable
        self._keeper = GroupKeeper(member, send, config, interface=interface, local_rank=local_rank, device=device)
        self._device = device
        self._on_bucket = on_bucket
        self._window: Window | None = None
        if on_bucket is not None:
            self._staging = Staging(layout, device, beside=beside, holds="bucket")
        elif device.type == "cpu":
            self._staging = staging or Staging(layout, CPU, beside=beside)
        else:
            self._staging = staging or Staging(layout, CPU, beside=device)
            self._window = Window(layout, device)
        self._checksum = Checksum(device)
        self.policy_version: int | None = None
        """The complete version held; None before the first transfer, during a transfer, and after a failed one."""

    async def transfer(self, transfer: Transfer) -> float:
        """
        Receive a version into the staging buffers, overwriting the previous one; returns the duration in seconds.

        Raises:
            TransferError: The version did not arrive undamaged by the deadline. The transfer group is dead.
        """
        rank = self._keeper.rank(transfer)
        if rank == 0:
            raise TransferError(
                f"transfer group {transfer.transfer_group} lists a receiver at rank 0; expected the trainer there"
            )
        seconds = await self._keeper.run(transfer, rank, partial(self._receive, transfer.policy_version))
        self.policy_version = transfer.policy_version
        return seconds

    def weights(self) -> dict[str, Tensor]:
        """Read-only views into the staging buffers by name, until the next `transfer`; empty with ``on_bucket``."""
        if self.policy_version is None:
            raise TransferError("no complete policy version is staged; a transfer must succeed first")
        return {} if self._on_bucket else self._staging.tensors

    def deliver(self, value: StoreValue) -> None:
        self._keeper.deliver(value)

    def abort(self, abort: Abort) -> None:
        """Give up the transfer of a group; see `GroupKeeper.abort`."""
        self._keeper.abort(abort)

    async def aclose(self) -> None:
        """Abort a running transfer, and close the groups and the thread. Idempotent."""
        await self._keeper.aclose()

    def _receive(self, policy_version: int, group: Group, deadline: Deadline) -> None:
        channel = Channel(group, deadline)
        received = header.blank(self._device)
        channel.broadcast(received)
        announced = header.decode(received)
        announced.check(policy_version, self._staging.layout)
        is_delta = announced.base_version != NO_VERSION
        if is_delta:
            self._check_base(announced.base_version)
        self.policy_version = None
        checksum = self._checksum if announced.is_checked else None
        receive(channel, self._staging.layout, self._buckets(is_delta=is_delta), is_delta=is_delta, checksum=checksum)

    def _buckets(self, *, is_delta: bool) -> Iterable[Tensor]:
        """Buffers to receive into, on the group's device."""
        if self._window:
            return self._window.into(self._staging, is_delta=is_delta)
        return self._handed_over(self._on_bucket) if self._on_bucket else self._staging.buckets

    def _handed_over(self, on_bucket: OnBucket) -> Iterator[Tensor]:
        for bucket, views in zip(self._staging.buckets, self._staging.views, strict=True):
            yield bucket
            on_bucket(views)

    def _check_base(self, base_version: int) -> None:
        if self._on_bucket or self.policy_version != base_version:
            held = "a single bucket" if self._on_bucket else f"version {self.policy_version}"
            raise TransferError(
                f"the sender sends what changed since version {base_version}, but {held} is staged here; the "
                f"sender must send whole buckets"
            )
