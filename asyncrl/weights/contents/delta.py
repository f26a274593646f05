"""
A bucket as what changed since one that the other end has.

    base   a b c d e f g h          changed elements at 1, 6
    new    a B c d e f G h          gaps      values B G, and how many elements to pass over before each: 1 4
                                    bitmap    values B G, and a bit for each element: 01000010
                                    full      the bucket itself

Elements are compared and copied as bits: NaNs keep their payloads, and -0.0 is not 0.0. Gaps are smallest up to one
change in eight elements, a bitmap beyond; what would take more than half of the bucket goes full, because writing so
many changes down takes longer than sending the other half. A gap is one byte; where more than 255 elements are to be
passed over, one that did not change is sent on the way.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from asyncrl.errors import TransferError

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Elements as bits, by their bytes."""
REACH = 256
"""Elements from one that is sent to the next, at most: a gap is 0 .. 255."""


WORTH_WRITING = 0.5
"""Share of the bucket's bytes that a delta may have."""


class Form(IntEnum):
    """How a bucket is written."""

    FULL = 0
    BITMAP = 1
    GAPS = 2


class Delta(NamedTuple):
    """A bucket, written."""

    form: Form
    payload: Tensor
    """[num_bytes] uint8: values first, so that they are aligned, then bits or gaps. `FULL`: the bucket, borrowed."""
    num_changed: int
    """Elements that differ from the base."""


def encode(new: Tensor, base: Tensor, item_bytes: int) -> Delta:
    """
    Write ``new`` in the form that travels soonest, for somebody who has ``base``.

    Args:
        new: [num_bytes] uint8.
        base: [num_bytes] uint8.
        item_bytes: Bytes of an element; divides ``num_bytes``.
    """
    elements = new.view(WORDS[item_bytes])
    changed = elements.ne(base.view(WORDS[item_bytes]))
    num_changed = int(changed.count_nonzero())
    bitmap_bytes, most_bytes = -(-len(elements) // 8) + num_changed * item_bytes, WORTH_WRITING * len(new)
    least_bytes = min(bitmap_bytes, most_bytes)
    if num_changed * (1 + item_bytes) <= least_bytes:  # What gaps too wide for a byte add is not in yet.
        payload = _gaps(elements, changed)
        if len(payload) <= least_bytes:
            return Delta(Form.GAPS, payload, num_changed)
    if bitmap_bytes <= most_bytes:
        return Delta(Form.BITMAP, _join(elements[changed], _packed(changed)), num_changed)
    return Delta(Form.FULL, new, num_changed)


def apply(form: Form, payload: Tensor, bucket: Tensor, item_bytes: int) -> None:
    """
    Make ``bucket``, which holds the base, hold what was encoded.

    Args:
        form: `BITMAP` or `GAPS`: a full bucket needs nobody to apply it.
        payload: [num_payload_bytes] uint8.
        bucket: [num_bytes] uint8, written to.
        item_bytes: As encoded.

    Raises:
        TransferError: The payload does not fit the bucket. Nothing was written then.
    """
    elements = bucket.view(WORDS[item_bytes])
    if form is Form.GAPS:
        num = len(payload) // (1 + item_bytes)
        where = (payload[num * item_bytes :].to(torch.int64) + 1).cumsum(0) - 1
        fits = len(payload) == num * (1 + item_bytes) and (num == 0 or int(where[-1]) < len(elements))
    else:
        num_bits_bytes = -(-len(elements) // 8)
        num = max(len(payload) - num_bits_bytes, 0) // item_bytes
        where = _unpacked(payload[num * item_bytes :])[: len(elements)].nonzero().squeeze(1)
        fits = len(payload) == num * item_bytes + num_bits_bytes and len(where) == num
    if not fits:
        raise TransferError(f"a {form.name.lower()} delta of {len(payload)} bytes does not fit its bucket")
    elements.index_copy_(0, where, payload[: num * item_bytes].view(WORDS[item_bytes]))


def _gaps(elements: Tensor, changed: Tensor) -> Tensor:
    """[num_bytes] uint8: the payload of `GAPS`."""
    where = _within_reach(changed.nonzero().squeeze(1))
    return _join(elements[where], (where - _one_before(where) - 1).to(torch.uint8))


def _within_reach(where: Tensor) -> Tensor:
    """
    The same elements, and on the way to those out of reach of the one before, every `REACH`-th.

    Args:
        where: [num] int64, ascending.
    """
    before = _one_before(where)
    hops = (where - before + REACH - 1) // REACH  # 1 if it is in reach
    if bool((hops == 1).all()):
        return where
    starts = hops.cumsum(0) - hops
    hop = torch.arange(int(hops.sum()), device=where.device) - starts.repeat_interleave(hops)  # 0, 1 ... of each
    ahead = before.repeat_interleave(hops) + REACH * (hop + 1)
    return torch.minimum(ahead, where.repeat_interleave(hops))


def _one_before(where: Tensor) -> Tensor:
    """[num] int64: the one before each; before the first lies -1."""
    return pad(where[:-1], (1, 0), value=-1) if len(where) else where


def _packed(bits: Tensor) -> Tensor:
    """[ceil(num / 8)] uint8: bit i of a byte is element i of eight."""
    eights = pad(bits, (0, -len(bits) % 8)).view(torch.uint8).view(-1, 8)
    packed = eights[:, 0].clone()
    for i in range(1, 8):
        packed |= eights[:, i] << i
    return packed


def _unpacked(packed: Tensor) -> Tensor:
    """[8 num_bytes] bool."""
    powers = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=packed.device)
    return packed[:, None].bitwise_and(powers).ne(0).view(-1)


def _join(values: Tensor, positions: Tensor) -> Tensor:
    return torch.cat([values.view(torch.uint8), positions])
