"""
Memory that a device is spared: tensors and moments that wait on the host, and activations that are computed again.

    forward     layer's input ──copy, on a stream of its own──▶ page-locked memory        the layer goes on meanwhile
    backward    layer's input ◀──────────copy───────────────── page-locked memory         before it is recomputed

On a CPU host and device are one memory, and nothing is copied.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

from asyncrl.errors import ConfigError


def host_empty(like: Tensor) -> Tensor:
    """Memory on the host, page-locked beside a device, so that copies need not wait; sharded like ``like``."""
    is_locked = like.device.type != "cpu"
    if isinstance(like, DTensor):
        return torch.empty_like(like, device="cpu", pin_memory=is_locked)
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=is_locked)


Waiting = tuple[Tensor, torch.device]
"""Copy of a tensor on the host, and the device that it comes back to."""


class HostActivations(saved_tensors_hooks):
    """
    Inside a block, what the backward pass needs goes to the host, unless another such block is inside it.

    The device memory is free once the copy is done, and is taken again when the backward pass asks for the tensor.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(self._save, self._bring)
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream: Any = self._module.Stream(device) if self._module else None

    def _save(self, tensor: Tensor) -> Tensor | Waiting:
        if self._module is None or not tensor.is_floating_point() or tensor.device.type == "cpu":
            return tensor
        host = host_empty(tensor)
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        return host, tensor.device

    def _bring(self, saved: Tensor | Waiting) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        host, device = saved
        with self._module.stream(self._stream):
            tensor = host.to(device, non_blocking=True)
        current = self._module.current_stream()
        current.wait_stream(self._stream)
        tensor.record_stream(current)
        return tensor


# ── host moments ──────────────────────────────────────────────────────────────────────────────
# AdamW's moments on the host: while a bucket of parameters is updated, its moments are on the device.
#
#     host      m v │ m v │ m v        page-locked, 8 bytes for each element
#                ▼ ▲
#     device     m v                   one bucket at a time

BUCKET = 1 << 28
"""Bytes of the moments that are on the device at a time; a larger parameter has a bucket of its own."""
NAMES = ("exp_avg", "exp_avg_sq")
ITEM = 8
"""Bytes of the two moments of an element."""


def moment_buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters in their order, cut where the moments of this rank's rows would exceed `BUCKET`."""
    found: list[list[nn.Parameter]] = [[]]
    num_bytes = 0
    for parameter in parameters:
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        num_bytes += ITEM * own.numel()
        if found[-1] and num_bytes > BUCKET:
            found.append([])
            num_bytes = ITEM * own.numel()
        found[-1].append(parameter)
    return found


@contextmanager
def moments_on_device(state: MutableMapping[Tensor, Any]) -> Iterator[None]:
    """The moments in an AdamW's state are beside their parameters inside the block, and on the host after it."""
    waiting = {weight: {name: moments[name] for name in NAMES} for weight, moments in state.items()}
    for weight, moments in waiting.items():
        state[weight] |= {name: moment.to(weight.device, non_blocking=True) for name, moment in moments.items()}
    yield
    for weight, moments in state.items():
        host = waiting.get(weight) or {name: host_empty(moments[name]) for name in NAMES}
        for name in NAMES:
            host[name].copy_(moments[name], non_blocking=True)
        moments.update(host)
    for device in {weight.device for weight in state} - {torch.device("cpu")}:
        torch.get_device_module(device).current_stream().synchronize()  # a checkpoint may read them now


# ── activation checkpointing ──────────────────────────────────────────────────────────────────
# Activation checkpointing: what layers keep for the backward pass, and what it computes again.
#
#     whole         a layer's input                                    computed again: the layer
#     selective     and what attention and matrix products return      computed again: norms, gates, rotations
#
# Source:
#   Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198 (selective); torch.utils.checkpoint.

Checkpointing = bool | Literal["selective"]
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
"""Matrix products by their names in ATen."""
ATTENTIONS = ("attention", "attn")
"""Parts of the names of all kernels of attention: torch's, torch_npu's, and that of the memory planner."""


def enable_checkpointing(
    model: Any, source: str, how: Checkpointing = True, *, inputs: AbstractContextManager[Any] | None = None
) -> None:
    """
    Recompute activations of the layers of a transformers model in the backward pass.

    Args:
        source: Names the model in errors.
        how: True for ``whole``, or ``selective``.
        inputs: Hooks for the inputs of layers, such as `HostActivations`, entered around each layer.

    Raises:
        ConfigError: The model has dropout, which checkpointing would activate.
    """
    for key, value in model.config.get_text_config().to_dict().items():
        if "drop" in key and isinstance(value, float) and value > 0:
            raise ConfigError(
                f"{source}: {key}={value} in its config.json would be active with trainer.gradient_checkpointing; set "
                f"{key} to 0, or switch gradient checkpointing off"
            )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    layer = partial(_layer, how == "selective", inputs or nullcontext())
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module._gradient_checkpointing_func = layer
    model.train()  # transformers checkpoints only in this mode


def _layer(is_selective: bool, inputs: AbstractContextManager[Any], function: Callable[..., Any], *args: Any) -> Any:
    further: dict[str, Any] = {}
    if is_selective:
        further["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    with inputs:  # checkpoint has hooks of its own around what is inside the layer
        return checkpoint(function, *args, use_reentrant=False, **further)


def _policy(_: object, operation: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
    name: str = operation.overloadpacket.__name__
    is_kept = name in PRODUCTS or any(part in name for part in ATTENTIONS)
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
