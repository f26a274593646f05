"""
Activation checkpointing: what layers keep for the backward pass, and what it computes again.

    whole         a layer's input                                    computed again: the layer
    selective     and what attention and matrix products return      computed again: norms, gates, rotations

Source:
    Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198 (selective); torch.utils.checkpoint.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

from asyncrl.errors import ConfigError

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
