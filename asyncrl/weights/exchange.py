"""
Broadcasts of one transfer after the header, in order.

    each bucket     whole ─────▶ the bucket             number of bytes: from the layout
                    a delta ───▶ form, size; payload    number of bytes: the announced size
    at the end      checked ───▶ checksums              8 bytes per bucket

Each bucket is encoded, applied and checksummed before the next one is broadcast. Empty tensors (an empty bucket, a
delta without changes) are not broadcast.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents import delta
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.delta import Form
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.group import CPU, Group


class SendStats(Struct):
    """Counts of one transfer, updated by `send`."""

    num_bytes: int = 0
    """Bytes of weights that were sent, after delta encoding."""
    num_changed: int = 0
    """Elements that differ from the base; 0 without one."""
    num_buckets: int = 0
    """Buckets that were sent."""


class Channel:
    """A group and the deadline of one transfer."""

    def __init__(self, group: Group, deadline: Deadline) -> None:
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
                f"bucket {i} of {len(sums)}, which begins with {first}, is damaged: its checksum is {_hex(ours)}, the "
                f"sender's is {_hex(theirs)}"
            )


def _hex(checksum: int) -> str:
    return f"{checksum % (1 << 64):016x}"
