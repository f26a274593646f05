"""A model's parameters by name: what a transfer must bring, and how it gets in. Tied parameters count once."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from asyncrl.errors import EngineError
from asyncrl.weights.plan import TensorSpec


def specs(model: nn.Module) -> list[TensorSpec]:
    """Name, shape and dtype of every parameter, in the model's order."""
    return [
        TensorSpec(name=name, shape=tuple(parameter.shape), dtype=str(parameter.dtype).removeprefix("torch."))
        for name, parameter in model.named_parameters()
    ]


@torch.inference_mode()
def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """
    Copy ``weights`` into the model: all of them, or none.

    Args:
        model: Keeps its parameters; only their values change, so views of them stay valid.
        weights: Every name of `specs`, once. Borrowed.

    Raises:
        EngineError: Not retryable; a name or a shape is not the model's.
    """
    parameters = dict(model.named_parameters())
    if missing := sorted(parameters.keys() - weights.keys()):
        raise EngineError(f"weights lack {_first(missing)}; send what specs() names", retryable=False)
    if unknown := sorted(weights.keys() - parameters.keys()):
        raise EngineError(f"weights have {_first(unknown)}, which the model has not", retryable=False)
    for name, parameter in parameters.items():
        if weights[name].shape != parameter.shape:
            raise EngineError(
                f"weight {name!r} is {tuple(weights[name].shape)}, but the model's is {tuple(parameter.shape)}",
                retryable=False,
            )
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


def _first(names: list[str]) -> str:
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
