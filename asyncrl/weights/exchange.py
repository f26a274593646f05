"""
Broadcasts of one transfer after the header, in order, and the trainer's staged copies of versions.

    each bucket     whole ─────▶ the bucket             number of bytes: from the layout
                    a delta ───▶ form, size; payload    number of bytes: the announced size
    at the end      checked ───▶ checksums              8 bytes per bucket

Each bucket is encoded, applied and checksummed before the next one is broadcast. Empty tensors (an empty bucket, a
delta without changes) are not broadcast.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents import delta
from asyncrl.weights.contents.delta import Form
from asyncrl.weights.contents.header import NO_VERSION, Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.group import CPU, ProcessGroup
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.staging import Staging


class SendStats(Struct):
    """Counts of what one transfer has sent so far, updated by `send`."""

    num_bytes: int = 0
    """Bytes of weights that were sent, after delta encoding."""
    num_changed: int = 0
    """Elements that differ from the base; 0 without one."""
    num_buckets: int = 0
    """Buckets that were sent."""


class Channel:
    """A group and the deadline of one transfer."""

    def __init__(self, group: ProcessGroup, deadline: Deadline) -> None:
        self._group = group
        self._deadline = deadline

    def broadcast(self, tensor: Tensor) -> None:
        """Copy rank 0's tensor into the same-sized tensors of the other ranks."""
        if tensor.numel():
            self._group.broadcast(tensor, 0, self._deadline)


def send(
    channel: Channel,
    layout: Layout,
    buckets: Iterable[Tensor],
    *,
    base: Iterable[Tensor] | None,
    checksum: Checksum | None,
    stats: SendStats,
) -> None:
    """
    Send a version, without checksums if ``checksum`` is None.

    Args:
        buckets: Those of the layout, on the group's device; each is read before the next one is asked for.
        base: Buckets of the version that all receivers hold, to send deltas from; None sends whole buckets.
    """
    sums, device = [], CPU
    bases: Iterable[Tensor | None] = repeat(None) if base is None else base
    for bucket, old, planned in zip(buckets, bases, layout.buckets, strict=False):
        payload, device = bucket, bucket.device
        if old is not None:
            form, payload, num_changed = delta.encode(bucket, old, planned.item_bytes)
            channel.broadcast(torch.tensor([form, len(payload)], device=bucket.device))
            stats.num_changed += num_changed
        channel.broadcast(payload)
        stats.num_bytes += len(payload)
        stats.num_buckets += 1
        if checksum:
            sums.append(checksum(bucket))
    if checksum and sums:
        channel.broadcast(torch.tensor(sums, device=device))


def receive(
    channel: Channel, layout: Layout, buckets: Iterable[Tensor], *, is_delta: bool, checksum: Checksum | None
) -> None:
    """
    Receive a version.

    Args:
        buckets: Buffers for those of the layout, on the group's device; each holds the bucket when the next one is
            asked for, and holds the base of a delta at first.
        checksum: None if the sender sends no checksums.

    Raises:
        TransferError: A bucket is damaged; what was received is invalid.
    """
    sums, device = [], CPU
    for bucket, planned in zip(buckets, layout.buckets, strict=True):
        device = bucket.device
        if is_delta:
            _receive_delta(channel, bucket, planned.item_bytes)
        else:
            channel.broadcast(bucket)
        if checksum:
            sums.append(checksum(bucket))
    if checksum and sums:
        expected = torch.empty(len(sums), dtype=torch.int64, device=device)
        channel.broadcast(expected)
        _compare(layout, sums, expected.tolist())


def _receive_delta(channel: Channel, bucket: Tensor, item_bytes: int) -> None:
    announced = torch.empty(2, dtype=torch.int64, device=bucket.device)
    channel.broadcast(announced)
    form, num_bytes = announced.tolist()
    is_known = form in set(Form) and 0 <= num_bytes <= len(bucket)
    if not is_known or (form == Form.FULL and num_bytes < len(bucket)):
        raise TransferError(
            f"the sender announced a delta of form {form} and {num_bytes} bytes, which does not fit a bucket of "
            f"{len(bucket)} bytes"
        )
    if form == Form.FULL:
        channel.broadcast(bucket)
    else:
        payload = bucket.new_empty(num_bytes)
        channel.broadcast(payload)
        delta.apply(Form(form), payload, bucket, item_bytes)


def _compare(layout: Layout, sums: Sequence[int], expected: Sequence[int]) -> None:
    for i, (ours, theirs) in enumerate(zip(sums, expected, strict=True)):
        if ours != theirs:
            first = layout.buckets[i].slots[0].spec.name
            raise TransferError(
                f"bucket {i} of {len(sums)}, which begins with {first}, is damaged: its checksum is "
                f"{ours % (1 << 64):016x}, the sender's is {theirs % (1 << 64):016x}"
            )


# ── copies ────────────────────────────────────────────────────────────────────────────────────
# The trainer's copies of policy versions, each in its own staging buffers.
#
#     write(v + 1) ─▶ the oldest free copy        read(v) ─▶ the copy of v, locked during the transfer
#
# With two copies, version v + 1 can be written while v is sent. A third copy keeps the version that receivers hold,
# as the base of deltas.
#
# Invariants: the newest complete version, versions being read, and the kept version are never overwritten; a copy
# whose write was interrupted holds no version.


class _Copy:
    def __init__(self, staging: Staging) -> None:
        self.staging = staging
        self.policy_version = NO_VERSION
        self.num_readers = 0


class Copies:
    """
    Staged copies of policy versions at the trainer. Thread-safe for one writer and any readers.

    ``keeps_base`` adds a third copy, so `keep` delays no writer. ``beside`` is the device of the model; see `Staging`.
    """

    def __init__(self, layout: Layout, device: torch.device, *, keeps_base: bool, beside: torch.device = CPU) -> None:
        self._copies = [_Copy(Staging(layout, device, beside=beside)) for _ in range(3 if keeps_base else 2)]
        self._newest: _Copy | None = None
        self._kept: _Copy | None = None
        self._changed = threading.Condition()

    @property
    def newest(self) -> int:
        """The last complete version; `NO_VERSION` before the first."""
        return self._newest.policy_version if self._newest else NO_VERSION

    @contextmanager
    def write(self, policy_version: int) -> Iterator[Staging]:
        """Yield buffers for a version, which is complete when the block ends. Waits until a copy is free."""
        with self._changed:
            self._changed.wait_for(self._free)
            copy = min(self._free(), key=lambda copy: copy.policy_version)
            copy.policy_version = NO_VERSION
        yield copy.staging
        with self._changed:
            copy.policy_version, self._newest = policy_version, copy

    @contextmanager
    def read(self, policy_version: int) -> Iterator[Staging | None]:
        """Yield the buffers of a version, locked until the block ends; None if no copy holds the version."""
        with self._changed:
            copy = self._find(policy_version)
            if copy:
                copy.num_readers += 1
        try:
            yield copy.staging if copy else None
        finally:
            with self._changed:
                if copy:
                    copy.num_readers -= 1
                self._changed.notify_all()

    def keep(self, policy_version: int) -> None:
        """Keep this version, which must be locked by `read`, in place of the version kept before."""
        with self._changed:
            self._kept = self._find(policy_version)

    def kept(self) -> tuple[int, Staging] | None:
        """The kept version and its buffers; None if no version is kept."""
        return (self._kept.policy_version, self._kept.staging) if self._kept else None

    def _free(self) -> list[_Copy]:
        return [copy for copy in self._copies if not copy.num_readers and copy not in (self._newest, self._kept)]

    def _find(self, policy_version: int) -> _Copy | None:
        return next((copy for copy in self._copies if copy.policy_version == policy_version != NO_VERSION), None)
