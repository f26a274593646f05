"""
What travels in one transfer after the header, in the order in which both ends broadcast it.

    each bucket     whole ─────▶ the bucket             as many bytes as the plan says
                    a delta ───▶ form, size; payload    as many bytes as was said just before
    at the end      checked ───▶ checksums              8 bytes a bucket

Sender and receivers work on one bucket while the next is on its way: buckets are encoded, applied and summed up as they
come. What is not there is not broadcast: an empty bucket, a delta of nothing.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents import delta
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.delta import Form
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.group import Group
from asyncrl.weights.staging import Staging

OnBucket = Callable[[Mapping[str, Tensor]], None]
"""Takes the tensors of one bucket, by name, before it returns: the next bucket is received over them."""


class Sent(Struct):
    """What moved."""

    num_bytes: int = 0
    """Of weights, as they travelled."""
    num_changed: int = 0
    """Elements that differ from the base; of deltas only."""


class Channel:
    """A group, for the length of one transfer. What rank 0 moves, the others get."""

    def __init__(self, group: Group, deadline: Deadline) -> None:
        self._group = group
        self._deadline = deadline

    def move(self, tensor: Tensor) -> None:
        """Copy the sender's into everybody's, which has as many bytes."""
        if tensor.numel():
            self._group.broadcast(tensor, 0, self._deadline)


def send(
    channel: Channel, plan: Layout, staging: Staging, *, base: Staging | None, checksum: Checksum | None, sent: Sent
) -> None:
    """
    Send a version.

    Args:
        staging: The version.
        base: What all receivers hold; None sends everything.
        checksum: None sends no checksums.
        sent: Is added to.
    """
    sums = []
    for i, bucket in enumerate(staging.buckets):
        payload = bucket
        if base:
            form, payload, num_changed = delta.encode(bucket, base.buckets[i], plan.buckets[i].item_bytes)
            channel.move(torch.tensor([form, len(payload)], device=bucket.device))
            sent.num_changed += num_changed
        channel.move(payload)
        sent.num_bytes += len(payload)
        if checksum:
            sums.append(checksum.of(bucket))
    if checksum and sums:
        channel.move(torch.tensor(sums, device=staging.buckets[0].device))


def receive(
    channel: Channel, plan: Layout, staging: Staging, *, is_delta: bool, checksum: Checksum | None, on_bucket: OnBucket
) -> None:
    """
    Receive a version.

    Args:
        staging: Is written to; holds the base if deltas come.
        is_delta: The sender has a base.
        checksum: None if no checksums come.
        on_bucket: Called for every bucket of the plan, in its order, before its checksum is known to be right.

    Raises:
        TransferError: A bucket is not what was sent. Nothing in ``staging`` is of use then.
    """
    sums = []
    for i, bucket in enumerate(staging.buckets):
        if is_delta:
            _receive_delta(channel, bucket, plan.buckets[i].item_bytes)
        else:
            channel.move(bucket)
        if checksum:
            sums.append(checksum.of(bucket))
        on_bucket(staging.views[i])
    if checksum and sums:
        expected = torch.empty(len(sums), dtype=torch.int64, device=staging.buckets[0].device)
        channel.move(expected)
        _compare(plan, sums, expected.tolist())


def _receive_delta(channel: Channel, bucket: Tensor, item_bytes: int) -> None:
    announced = torch.empty(2, dtype=torch.int64, device=bucket.device)
    channel.move(announced)
    form, num_bytes = announced.tolist()
    is_known = form in set(Form) and 0 <= num_bytes <= len(bucket)
    if not is_known or (form == Form.FULL and num_bytes < len(bucket)):
        raise TransferError(f"the sender announced a delta of form {form} and {num_bytes} bytes; expected another")
    if form == Form.FULL:
        channel.move(bucket)
    else:
        payload = bucket.new_empty(num_bytes)
        channel.move(payload)
        delta.apply(Form(form), payload, bucket, item_bytes)


def _compare(plan: Layout, sums: Sequence[int], expected: Sequence[int]) -> None:
    for i, (ours, theirs) in enumerate(zip(sums, expected, strict=True)):
        if ours != theirs:
            first = plan.buckets[i].slots[0].spec.name
            raise TransferError(
                f"bucket {i} of {len(sums)}, which begins with {first}, is damaged: its checksum is {_hex(ours)}, the "
                f"sender's {_hex(theirs)}"
            )


def _hex(checksum: int) -> str:
    return f"{checksum % (1 << 64):016x}"
