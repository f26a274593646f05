"""
Two buffers on a device, through which a version in host memory is sent.

    host      │ bucket 0 │ bucket 1 │ bucket 2 │ ···            page-locked
                              │ copied on a stream of its own
    device    │ bucket 0 │ bucket 1 │                           sent from one buffer while the other is filled
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.staging import Staging


class Window:
    """The memory is as much as two of the largest buckets. For one thread at a time."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        size = max((bucket.num_bytes for bucket in layout.buckets), default=0)
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream: Any = self._module.Stream(device) if self._module else None

    def buckets(self, staging: Staging) -> Iterator[Tensor]:
        """Yield each bucket on the device. It is valid until the next one is asked for, which is copied meanwhile."""
        pending = None
        for number, bucket in enumerate(staging.buckets):
            copying = self._copy(number, bucket)
            if pending is not None:
                yield pending
            self._wait()
            pending = copying
        if pending is not None:
            yield pending

    def _copy(self, number: int, bucket: Tensor) -> Tensor:
        target = self._buffers[number % 2][: len(bucket)]
        with self._module.stream(self._stream) if self._module else nullcontext():
            target.copy_(bucket, non_blocking=True)
        return target

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
