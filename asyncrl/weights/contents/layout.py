"""
What moves: names, shapes and dtypes, laid out in buckets. The same plan on both sides, agreed before the first byte.

    specs, by name      a │ b │ c │ d ─────────────▶  bucket 0: a·b··   bucket 1: c   bucket 2: d·

Invariants: every tensor lies in one bucket, once; slots start at multiples of `ALIGN_BYTES` and do not overlap; a
bucket holds at most ``bucket_bytes``, unless one tensor alone is larger. Knows no torch: dtypes are names.
"""

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from math import prod

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError

ALIGN_BYTES = 16
"""Largest element of any dtype (complex128), so that a slot can be viewed as its dtype without a copy."""

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
"""Bytes of one element, by torch's name of the dtype."""


class TensorSpec(Struct, frozen=True, kw_only=True, order=True):
    """Name, shape and dtype of one parameter, as the trainer and the engine must agree on."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch prints it, without ``torch.``: ``float32``, ``bfloat16``."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements, without padding."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class Slot(Struct, frozen=True):
    """Where one tensor lies in its bucket: ``offset .. offset + spec.num_bytes - 1``."""

    spec: TensorSpec
    offset: int


class Bucket(Struct, frozen=True):
    """Contiguous bytes that travel as one collective."""

    slots: tuple[Slot, ...]
    num_bytes: int
    """Padding between the slots included."""

    @property
    def item_bytes(self) -> int:
        """Of its smallest element. All slots begin and end at multiples of it."""
        return min(ITEM_BYTES[slot.spec.dtype] for slot in self.slots)


class Layout:
    """
    The layout of a set of tensors, the same whatever order they were given in.

    Args:
        specs: Every tensor that moves.
        bucket_bytes: Upper bound of a bucket; a larger tensor gets a bucket of its own.

    Raises:
        ConfigError: A name comes twice, or a dtype is not known.
    """

    def __init__(self, specs: Iterable[TensorSpec], bucket_bytes: int) -> None:
        self.specs = tuple(sorted(specs))
        """By name: trainer and engine list their parameters in orders of their own."""
        _check(self.specs)
        self.buckets = tuple(_fill(self.specs, bucket_bytes))
        self.num_bytes = sum(bucket.num_bytes for bucket in self.buckets)
        self.num_items = sum(bucket.num_bytes // bucket.item_bytes for bucket in self.buckets)
        """Elements, where a bucket counts in its smallest: the unit of deltas."""
        content = [(spec.name, spec.shape, spec.dtype) for spec in self.specs]
        self.hash = hashlib.sha256(msgspec.json.encode((bucket_bytes, content))).hexdigest()
        """sha256, hex. Equal hashes: equal layouts, byte for byte."""

    def difference(self, other: Iterable[TensorSpec]) -> str | None:
        """
        The first tensor, by name, on which ``other`` disagrees with this plan, as a sentence; None if they agree.

        Args:
            other: The specs of the other side.
        """
        ours, theirs = ({spec.name: spec for spec in specs} for specs in (self.specs, other))
        for name in sorted(ours | theirs):
            if name not in theirs:
                return f"{name} is in the plan, but the other side does not have it"
            if name not in ours:
                return f"{name} is not in the plan, but the other side has it"
            for what in ("shape", "dtype"):
                expected, got = (getattr(specs[name], what) for specs in (ours, theirs))
                if expected != got:
                    return f"{name} has {what} {expected} in the plan, but {got} on the other side"
        return None

    def __repr__(self) -> str:
        return (
            f"<Plan {self.hash[:8]}: {len(self.specs)} tensors, {self.num_bytes} bytes in {len(self.buckets)} buckets>"
        )


def _check(specs: tuple[TensorSpec, ...]) -> None:
    for spec in specs:
        if spec.dtype not in ITEM_BYTES:
            raise ConfigError(f"weights: {spec.name} has dtype {spec.dtype!r}; expected one of {', '.join(ITEM_BYTES)}")
        if any(size < 0 for size in spec.shape):
            raise ConfigError(f"weights: {spec.name} has shape {spec.shape}; expected no negative size")
    for first, second in pairwise(specs):
        if first.name == second.name:
            raise ConfigError(f"weights: {first.name} is listed twice; expected every name once")


def _fill(specs: tuple[TensorSpec, ...], bucket_bytes: int) -> Iterable[Bucket]:
    slots: list[Slot] = []
    end = 0
    for spec in specs:
        offset = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        if slots and offset + spec.num_bytes > bucket_bytes:
            yield Bucket(tuple(slots), end)
            slots, offset = [], 0
        slots.append(Slot(spec, offset))
        end = offset + spec.num_bytes
    if slots:
        yield Bucket(tuple(slots), end)
