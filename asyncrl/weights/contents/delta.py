"""
Delta encoding of a bucket against a base bucket that the receiver holds.

    base   a b c d e f g h          changed elements at 1, 6
    new    a B c d e f G h          gaps      values B G, and the number of elements to skip before each: 1 4
                                    bitmap    values B G, and one bit per element: 01000010
                                    full      the bucket itself

Elements are compared and copied as bits: NaNs keep their payloads, and -0.0 differs from 0.0. Gaps are the smallest
encoding up to one change in eight elements, a bitmap beyond. A delta of more than half of the bucket is sent in full,
because encoding that many changes takes longer than sending the other half. A gap is one byte; to skip more than 255
elements, an unchanged element is sent in between.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from asyncrl.errors import TransferError

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype that holds the bits of an element, by bytes per element."""
REACH = 256
"""Maximum distance between two sent elements: a gap is 0 .. 255."""
MAX_DELTA_SHARE = 0.5
"""Maximum size of a delta, as a share of the bucket's bytes."""


class Form(IntEnum):
    FULL = 0
    BITMAP = 1
    GAPS = 2


class Delta(NamedTuple):
    form: Form
    payload: Tensor
    """[num_bytes] uint8: the values (first, for alignment), then bits or gaps. `FULL`: the bucket itself, no copy."""
    num_changed: int
    """Elements that differ from the base."""


def encode(new: Tensor, base: Tensor, item_bytes: int) -> Delta:
    """
    Encode ``new`` against ``base`` in the form that takes the least time to encode and send.

    Both are [num_bytes] uint8; ``item_bytes``, the bytes of an element, divides ``num_bytes``.
    """
    elements = new.view(WORDS[item_bytes])
    changed = elements.ne(base.view(WORDS[item_bytes]))
    num_changed = int(changed.count_nonzero())
    bitmap_bytes, most_bytes = -(-len(elements) // 8) + num_changed * item_bytes, MAX_DELTA_SHARE * len(new)
    least_bytes = min(bitmap_bytes, most_bytes)
    if num_changed * (1 + item_bytes) <= least_bytes:  # lower bound: gaps wider than a byte add elements
        where = _fill_wide_gaps(changed.nonzero().squeeze(1))
        payload = _join(elements[where], (where - _predecessors(where) - 1).to(torch.uint8))
        if len(payload) <= least_bytes:
            return Delta(Form.GAPS, payload, num_changed)
    if bitmap_bytes <= most_bytes:
        return Delta(Form.BITMAP, _join(elements[changed], _packed(changed)), num_changed)
    return Delta(Form.FULL, new, num_changed)


def apply(form: Form, payload: Tensor, bucket: Tensor, item_bytes: int) -> None:
    """
    Apply a delta: overwrite the base in ``bucket`` with the new bucket.

    Args:
        form: `BITMAP` or `GAPS`.
        payload: [num_payload_bytes] uint8.
        bucket: [num_bytes] uint8.
        item_bytes: Same value as for `encode`.

    Raises:
        TransferError: The payload does not fit the bucket, which is unchanged then.
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


def _fill_wide_gaps(where: Tensor) -> Tensor:
    """Add every `REACH`-th position inside a gap wider than `REACH` to ``where`` ([num] int64, ascending)."""
    before = _predecessors(where)
    hops = (where - before + REACH - 1) // REACH  # 1 where the gap fits into a byte
    if bool((hops == 1).all()):
        return where
    starts = hops.cumsum(0) - hops
    hop = torch.arange(int(hops.sum()), device=where.device) - starts.repeat_interleave(hops)  # 0, 1 ... in each gap
    ahead = before.repeat_interleave(hops) + REACH * (hop + 1)
    return torch.minimum(ahead, where.repeat_interleave(hops))


def _predecessors(where: Tensor) -> Tensor:
    """[num] int64: the position before each; -1 before the first."""
    return pad(where[:-1], (1, 0), value=-1) if len(where) else where


def _packed(bits: Tensor) -> Tensor:
    """[ceil(num / 8)] uint8: bit i of byte b is element 8b + i."""
    eights = pad(bits, (0, -len(bits) % 8)).view(torch.uint8).view(-1, 8)
    packed = eights[:, 0].clone()
    for i in range(1, 8):
        packed |= eights[:, i] << i
    return packed


def _unpacked(packed: Tensor) -> Tensor:
    """[8 num_bytes] bool: inverse of `_packed`, with its padding."""
    powers = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=packed.device)
    return packed[:, None].bitwise_and(powers).ne(0).view(-1)


def _join(values: Tensor, positions: Tensor) -> Tensor:
    return torch.cat([values.view(torch.uint8), positions])
