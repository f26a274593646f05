"""A model's parameters by their names in a checkpoint: what a transfer must bring, and how it gets in."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.errors import ConfigError, EngineError
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import are_views, checkpoint_specs, checkpoint_tensors


def specs(model: PreTrainedModel) -> list[TensorSpec]:
    """Name, shape and dtype of every tensor, tied ones once."""
    return checkpoint_specs(model, str(model.dtype).removeprefix("torch."))


def check_loadable(model: PreTrainedModel) -> None:
    """
    Refuse a model that `load` could not write to.

    Raises:
        ConfigError: Its checkpoints are not made of parts of its parameters.
    """
    if not are_views(model):
        raise ConfigError(
            f"{type(model).__name__} stores weights in another order than its checkpoints, so they cannot be replaced "
            f"in place; use another model, or another rollout.engine"
        )


@torch.inference_mode()
def load(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """
    Copy ``weights`` into the model: all of them, or none.

    Args:
        model: Keeps its parameters; only their values change, so views of them stay valid.
        weights: Every name of `specs`, once. Borrowed.

    Raises:
        EngineError: Not retryable; a name or a shape is not the model's.
    """
    parts = dict(checkpoint_tensors(model))
    if missing := sorted(parts.keys() - weights.keys()):
        raise EngineError(f"weights lack {_first(missing)}; send what specs() names", retryable=False)
    if unknown := sorted(weights.keys() - parts.keys()):
        raise EngineError(f"weights have {_first(unknown)}, which the model has not", retryable=False)
    for name, part in parts.items():
        if weights[name].shape != part.shape:
            raise EngineError(
                f"weight {name!r} is {tuple(weights[name].shape)}, but the model's is {tuple(part.shape)}",
                retryable=False,
            )
    for name, part in parts.items():
        part.copy_(weights[name])


def _first(names: list[str]) -> str:
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
