"""
Two buffers on a device, through which a version in host memory is sent or received.

    host      │ bucket 0 │ bucket 1 │ bucket 2 │ ···            page-locked
                              │ copied on a stream of its own
    device    │ bucket 0 │ bucket 1 │                           sent from one buffer while the other is filled, or
                                                                received into one while the other is emptied
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.staging import Staging


class DoubleBuffer:
    """Two device buffers of the largest bucket's size. For one thread and one iterator at a time."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        size = max((bucket.num_bytes for bucket in layout.buckets), default=0)
        self._device = device
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._streams: list[Any] = [self._module.Stream(device) if self._module else None for _ in range(2)]
        """One for the copies of each buffer, which are thereby in order."""

    def buckets(self, staging: Staging) -> Iterator[Tensor]:
        """Yield each bucket on the device. It is valid until the next one is asked for, which is copied meanwhile."""
        pending = None
        for number, bucket in enumerate(staging.buckets):
            copying = self._loaded(number, bucket)
            if pending is not None:
                yield pending
            self._wait(number)
            pending = copying
        if pending is not None:
            yield pending

    def receive_into(self, staging: Staging, *, is_delta: bool = False) -> Iterator[Tensor]:
        """
        Yield a buffer on the device for each bucket, and copy what is in it to ``staging`` when the next is asked for.

        Everything is in ``staging`` once the iterator has ended. With ``is_delta`` each buffer holds the bucket of
        ``staging`` at first; otherwise its content is arbitrary.
        """
        for number, bucket in enumerate(staging.buckets):
            self._wait(number)  # for its copy of two buckets ago
            buffer = self._buffer(number, len(bucket))
            if is_delta:
                self._loaded(number, bucket)
                self._wait(number)
            yield buffer
            self._store(number, buffer, bucket)
        self._wait(0)
        self._wait(1)

    def _buffer(self, number: int, num_bytes: int) -> Tensor:
        return self._buffers[number % 2][:num_bytes]

    def _loaded(self, number: int, bucket: Tensor) -> Tensor:
        with self._copying(number):
            return self._buffer(number, len(bucket)).copy_(bucket, non_blocking=True)

    def _store(self, number: int, buffer: Tensor, bucket: Tensor) -> None:
        if self._module:  # what was computed on the buffer, such as a delta, comes first
            self._streams[number % 2].wait_stream(self._module.current_stream(self._device))
        with self._copying(number):
            bucket.copy_(buffer, non_blocking=True)

    def _copying(self, number: int) -> Any:
        return self._module.stream(self._streams[number % 2]) if self._module else nullcontext()

    def _wait(self, number: int) -> None:
        if self._module:
            self._streams[number % 2].synchronize()
