"""
Layout of a transfer: names, shapes and dtypes, packed into buckets. Both ends agree on its hash before a transfer.

    specs, by name     a │ b │ c │ d ─────────────▶  bucket 0: a·b··   bucket 1: c   bucket 2: d·

Invariants: every tensor lies in exactly one bucket; slots start at multiples of `ALIGN_BYTES` and do not overlap; a
bucket holds at most ``bucket_bytes``, unless one tensor alone is larger. Does not import torch: dtypes are names.
"""

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from math import prod

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError

ALIGN_BYTES = 16
"""Size of the largest element of any dtype (complex128): every slot can be viewed as its dtype without a copy."""

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per element, by torch's name of the dtype."""


class TensorSpec(Struct, frozen=True, kw_only=True, order=True):
    """Name, shape and dtype of one parameter; trainer and engine must agree on them."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """torch's name without ``torch.``: ``float32``, ``bfloat16``."""

    @property
    def num_bytes(self) -> int:
        """Size without padding."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class TensorSlot(Struct, frozen=True):
    """Bytes ``offset .. offset + spec.num_bytes - 1`` of a bucket, which hold one tensor."""

    spec: TensorSpec
    offset: int


class Bucket(Struct, frozen=True):
    """Contiguous bytes that are sent as one collective."""

    slots: tuple[TensorSlot, ...]
    num_bytes: int
    """Size of the bucket in bytes, with the padding between slots."""

    @property
    def item_bytes(self) -> int:
        """Bytes of the bucket's smallest element; all slots begin and end at multiples of it."""
        return min(ITEM_BYTES[slot.spec.dtype] for slot in self.slots)


class Layout:
    """
    Layout of a set of tensors. It does not depend on their order: trainer and engine list parameters differently.

    Args:
        specs: All tensors of a transfer.
        bucket_bytes: Maximum size of a bucket; a larger tensor gets a bucket of its own.

    Raises:
        ConfigError: A name occurs twice, a dtype is unknown, or a size is negative.
    """

    def __init__(self, specs: Iterable[TensorSpec], bucket_bytes: int) -> None:
        self.specs = tuple(sorted(specs))
        _check(self.specs)
        self.buckets = tuple(_pack(self.specs, bucket_bytes))
        self.num_bytes = sum(bucket.num_bytes for bucket in self.buckets)
        self.num_items = sum(bucket.num_bytes // bucket.item_bytes for bucket in self.buckets)
        """Sum over buckets of ``num_bytes // item_bytes``: the number of elements that deltas compare."""
        content = [(spec.name, spec.shape, spec.dtype) for spec in self.specs]
        self.hash = hashlib.sha256(msgspec.json.encode((bucket_bytes, content))).hexdigest()
        """sha256 in hex. Layouts with equal hashes are equal byte for byte."""

    def difference(self, other: Iterable[TensorSpec]) -> str | None:
        """One sentence about the first tensor, by name, that differs in ``other``; None if none differs."""
        ours, theirs = ({spec.name: spec for spec in specs} for specs in (self.specs, other))
        for name in sorted(ours | theirs):
            if name not in theirs:
                return f"{name} is in the layout, but the other side does not have it"
            if name not in ours:
                return f"{name} is not in the layout, but the other side has it"
            for what in ("shape", "dtype"):
                expected, got = (getattr(specs[name], what) for specs in (ours, theirs))
                if expected != got:
                    return f"{name} has {what} {expected} in the layout, but {got} on the other side"
        return None

    def __repr__(self) -> str:
        contents = f"{len(self.specs)} tensors, {self.num_bytes} bytes in {len(self.buckets)} buckets"
        return f"<Layout {self.hash[:8]}: {contents}>"


def _check(specs: tuple[TensorSpec, ...]) -> None:
    for spec in specs:
        if spec.dtype not in ITEM_BYTES:
            raise ConfigError(f"weights: {spec.name} has dtype {spec.dtype!r}; expected one of {', '.join(ITEM_BYTES)}")
        if any(size < 0 for size in spec.shape):
            raise ConfigError(f"weights: {spec.name} has shape {spec.shape}; expected no negative size")
    for first, second in pairwise(specs):
        if first.name == second.name:
            raise ConfigError(f"weights: {first.name} is listed twice; expected every name once")


def _pack(specs: tuple[TensorSpec, ...], bucket_bytes: int) -> Iterable[Bucket]:
    slots: list[TensorSlot] = []
    end = 0
    for spec in specs:
        offset = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        if slots and offset + spec.num_bytes > bucket_bytes:
            yield Bucket(tuple(slots), end)
            slots, offset = [], 0
        slots.append(TensorSlot(spec, offset))
        end = offset + spec.num_bytes
    if slots:
        yield Bucket(tuple(slots), end)
