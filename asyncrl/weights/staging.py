"""Staging buffers: a copy of the trainer's weights to send, or received weights before the engine loads them."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from asyncrl.weights.contents.layout import Bucket, Layout
from asyncrl.weights.groups.group import CPU


class Staging:
    """
    A buffer for every bucket of a layout, allocated once, and a view of every tensor.

    Args:
        device: Device of the buffers.
        beside: Device that computes. Buffers in host memory beside another device are page-locked, which makes copies
            between the two several times faster.
        holds: ``bucket`` allocates a single buffer, as large as the largest bucket, which holds one bucket at a time.
        buckets: Used instead of new buffers: [num_bytes] uint8 each, all zero.
    """

    def __init__(
        self,
        layout: Layout,
        device: torch.device = CPU,
        *,
        beside: torch.device = CPU,
        holds: Literal["whole", "bucket"] = "whole",
        buckets: Sequence[Tensor] | None = None,
    ) -> None:
        self.layout = layout
        sizes = [bucket.num_bytes for bucket in layout.buckets]
        is_locked = device.type == "cpu" != beside.type
        if buckets is not None or holds == "whole":
            new = (_buffer(size, device, is_locked=is_locked) for size in sizes)
            self.buckets = [*new] if buckets is None else [*buckets]
            """[num_bytes] uint8 per bucket; the padding is zero."""
        else:
            shared = _buffer(max(sizes, default=0), device, is_locked=is_locked)
            self.buckets = [shared[:size] for size in sizes]
        self.views = [views(*pair) for pair in zip(layout.buckets, self.buckets, strict=True)]
        """Tensors of each bucket by name, in the layout's shapes and dtypes."""
        self.tensors: dict[str, Tensor] = {name: view for views in self.views for name, view in views.items()}
        """Tensors of all buckets by name."""


def _buffer(num_bytes: int, device: torch.device, *, is_locked: bool) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=is_locked)


def views(bucket: Bucket, buffer: Tensor) -> dict[str, Tensor]:
    """Tensors of a bucket by name, which share the memory of ``buffer`` ([num_bytes] uint8)."""
    tensors = {}
    for slot in bucket.slots:
        raw = buffer[slot.offset : slot.offset + slot.spec.num_bytes]
        tensors[slot.spec.name] = raw.view(getattr(torch, slot.spec.dtype)).view(slot.spec.shape)
    return tensors
