"""A model's parameters under their checkpoint names: specs for the transfer, and loading of received weights."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.errors import ConfigError, EngineError
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import are_views, checkpoint_specs, checkpoint_tensors


def specs(model: PreTrainedModel) -> list[TensorSpec]:
    """Name, shape and dtype of every tensor; tied tensors once."""
    return checkpoint_specs(model, str(model.dtype).removeprefix("torch."))


def check_loadable(model: PreTrainedModel) -> None:
    """Raise `ConfigError` unless every checkpoint tensor is a view of a parameter, so that `load` can write to it."""
    if not are_views(model):
        raise ConfigError(
            f"{type(model).__name__} stores weights in another order than its checkpoints, so they cannot be replaced "
            f"in place; use another model, or another rollout.engine"
        )


@torch.inference_mode()
def load(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy ``weights`` in place: views stay valid. A wrong name or shape is a final `EngineError` before any copy."""
    parts = dict(checkpoint_tensors(model))
    if missing := sorted(parts.keys() - weights.keys()):
        raise EngineError(f"the weights lack {_first(missing)}; send every tensor of specs()", retryable=False)
    if unknown := sorted(weights.keys() - parts.keys()):
        raise EngineError(f"the weights have {_first(unknown)}, unknown to the model", retryable=False)
    for name, part in parts.items():
        if weights[name].shape != part.shape:
            raise EngineError(
                f"weight {name!r} has shape {tuple(weights[name].shape)}, but the model's has {tuple(part.shape)}",
                retryable=False,
            )
    for name, part in parts.items():
        part.copy_(weights[name])


def _first(names: list[str]) -> str:
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
