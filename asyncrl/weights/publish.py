"""Both sides of a transfer: the trainer's, which publishes, and a rollout's, which receives."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import ConfigError, TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, Transferred
from asyncrl.weights.contents import header
from asyncrl.weights.contents.header import NO_VERSION, Checksum, Header
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import Channel, Copies, SendStats, receive, send
from asyncrl.weights.groups.group import CPU, ProcessGroup
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.store import Send
from asyncrl.weights.staging import Staging
from asyncrl.wire.addresses import LOOPBACK

# ── publish ───────────────────────────────────────────────────────────────────────────────────
# The trainer's side of a transfer.
#
#     model ── stage ─▶ staging buffers ── transfer ─▶ rollouts
#       └─ next optimizer step ── stage ─▶ other buffers         at the same time


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
        self._double_buffers = [DoubleBuffer(layout, device) for _ in range(1 + config.delta)] if on_device else []
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
                if (target := staging.tensors.get(name)) is None:
                    raise TransferError(f"{name} is not in the weight layout")
                if target.shape != tensor.shape:
                    shapes = f"has shape {tuple(tensor.shape)}; the weight layout has {tuple(target.shape)}"
                    raise TransferError(f"{name} {shapes}")
                target.copy_(tensor)
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

    def _send(self, transfer: Transfer, stats: SendStats, group: ProcessGroup, deadline: Deadline) -> None:
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
        if not self._double_buffers:
            return [version.buckets for version in versions]
        return [buffer.buckets(version) for buffer, version in zip(self._double_buffers, versions, strict=False)]


# ── receive ───────────────────────────────────────────────────────────────────────────────────
# A rollout's side of a transfer.
#
#     trainer ── transfer ─▶ [two buckets on a device] ─▶ staging buffers on the host ── weights ─▶ engine.swap
#                 decoding continues ───────────────────────────────────────────▶ pause ─▶ resume
#
#     trainer ── transfer ─▶ one bucket ── on_bucket ─▶ engine, bucket by bucket        for models too big to stage
#                 decoding is paused throughout

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
        self._double_buffer: DoubleBuffer | None = None
        if on_bucket is not None:
            self._staging = Staging(layout, device, beside=beside, holds="bucket")
        elif device.type == "cpu":
            self._staging = staging or Staging(layout, CPU, beside=beside)
        else:
            self._staging = staging or Staging(layout, CPU, beside=device)
            self._double_buffer = DoubleBuffer(layout, device)
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

    def _receive(self, policy_version: int, group: ProcessGroup, deadline: Deadline) -> None:
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
        """Buffers for the buckets of a version, on the group's device."""
        if self._double_buffer:
            return self._double_buffer.receive_into(self._staging, is_delta=is_delta)
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


# ── double buffer ──────────────────────────────────────────────────────────────────────────────
# Two buffers on a device, through which a version in host memory is sent or received.
#
#     host      │ bucket 0 │ bucket 1 │ bucket 2 │ ···            page-locked
#                               │ copied on a stream of its own
#     device    │ bucket 0 │ bucket 1 │                           sent from one buffer while the other is filled, or
#                                                                 received into one while the other is emptied


class DoubleBuffer:
    """Two device buffers of the largest bucket's size. For one thread and one iterator at a time."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        size = max((bucket.num_bytes for bucket in layout.buckets), default=0)
        self._device = device
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._streams: list[Any] = [self._module.Stream(device) if self._module else None for _ in range(2)]
        """One for the copies of each buffer, which are thereby in order."""

    def buckets(self, staging: Staging) -> Iterator[Tensor]:
        """Yield each bucket on the device. It is valid until the next one is asked for, which is copied meanwhile."""
        pending = None
        for number, bucket in enumerate(staging.buckets):
            copying = self._loaded(number, bucket)
            if pending is not None:
                yield pending
            self._wait(number)
            pending = copying
        if pending is not None:
            yield pending

    def receive_into(self, staging: Staging, *, is_delta: bool = False) -> Iterator[Tensor]:
        """
        Yield a buffer on the device for each bucket, and copy what is in it to ``staging`` when the next is asked for.

        Everything is in ``staging`` once the iterator has ended. With ``is_delta`` each buffer holds the bucket of
        ``staging`` at first; otherwise its content is arbitrary.
        """
        for number, bucket in enumerate(staging.buckets):
            self._wait(number)  # for its copy of two buckets ago
            buffer = self._buffer(number, len(bucket))
            if is_delta:
                self._loaded(number, bucket)
                self._wait(number)
            yield buffer
            if self._module:  # what was computed on the buffer, such as a delta, comes first
                self._streams[number % 2].wait_stream(self._module.current_stream(self._device))
            with self._copying(number):
                bucket.copy_(buffer, non_blocking=True)
        self._wait(0)
        self._wait(1)

    def _buffer(self, number: int, num_bytes: int) -> Tensor:
        return self._buffers[number % 2][:num_bytes]

    def _loaded(self, number: int, bucket: Tensor) -> Tensor:
        with self._copying(number):
            return self._buffer(number, len(bucket)).copy_(bucket, non_blocking=True)

    def _copying(self, number: int) -> Any:
        return self._module.stream(self._streams[number % 2]) if self._module else nullcontext()

    def _wait(self, number: int) -> None:
        if self._module:
            self._streams[number % 2].synchronize()
