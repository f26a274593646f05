"""The bytes in between: what the trainer copied out of its model, or what an engine has yet to copy into its own."""

from typing import Literal

import torch
from torch import Tensor

from asyncrl.weights.contents.layout import Bucket, Layout


class Staging:
    """
    A buffer for every bucket of a plan, allocated once, and a view of every tensor in them.

    Args:
        plan: The layout.
        device: Where the buffers lie.
        holds: ``whole`` gives each bucket a buffer of its own. ``bucket`` lets all begin at the same byte of a single
            one, as large as the largest: it holds one bucket at a time.
    """

    def __init__(self, plan: Layout, device: torch.device, *, holds: Literal["whole", "bucket"] = "whole") -> None:
        sizes = [bucket.num_bytes for bucket in plan.buckets]
        if holds == "whole":
            self.buckets = [_buffer(size, device) for size in sizes]
            """[num_bytes] uint8 each. Zero between the tensors."""
        else:
            shared = _buffer(max(sizes, default=0), device)
            self.buckets = [shared[:size] for size in sizes]
        self.views = [_views(*pair) for pair in zip(plan.buckets, self.buckets, strict=True)]
        """Tensors of each bucket by name, in the plan's shapes and dtypes."""
        self.tensors: dict[str, Tensor] = {name: view for views in self.views for name, view in views.items()}
        """All of them."""


def _buffer(num_bytes: int, device: torch.device) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)


def _views(bucket: Bucket, buffer: Tensor) -> dict[str, Tensor]:
    views = {}
    for slot in bucket.slots:
        raw = buffer[slot.offset : slot.offset + slot.spec.num_bytes]
        views[slot.spec.name] = raw.view(getattr(torch, slot.spec.dtype)).view(slot.spec.shape)
    return views
