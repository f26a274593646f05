"""
Tensors that wait in host memory between their uses on a device.

    forward     layer's input ──copy, on a stream of its own──▶ page-locked memory        the layer goes on meanwhile
    backward    layer's input ◀──────────copy───────────────── page-locked memory         before it is recomputed

On a CPU host and device are one memory, and nothing is copied.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor


def host_empty(like: Tensor) -> Tensor:
    """Memory on the host, page-locked beside a device, so that copies need not wait; sharded like ``like``."""
    is_locked = like.device.type != "cpu"
    if isinstance(like, DTensor):
        return torch.empty_like(like, device="cpu", pin_memory=is_locked)
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=is_locked)


class _Waiting(NamedTuple):
    host: Tensor
    device: torch.device


class HostActivations(saved_tensors_hooks):
    """
    Inside a block, what the backward pass needs goes to the host, unless another such block is inside it.

    The device memory is free once the copy is done, and is taken again when the backward pass asks for the tensor.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(self._save, self._bring)
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream: Any = self._module.Stream(device) if self._module else None

    def _save(self, tensor: Tensor) -> Tensor | _Waiting:
        if self._module is None or not tensor.is_floating_point() or tensor.device.type == "cpu":
            return tensor
        host = host_empty(tensor)
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        return _Waiting(host, tensor.device)

    def _bring(self, saved: Tensor | _Waiting) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        with self._module.stream(self._stream):
            tensor = saved.host.to(saved.device, non_blocking=True)
        current = self._module.current_stream()
        current.wait_stream(self._stream)
        tensor.record_stream(current)
        return tensor
