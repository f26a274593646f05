"""
AdamW's moments as named tensors, ``<parameter>/<moment>``, for a safetensors file.

Parameters that were never updated have no moments, before and after a round trip.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.errors import LedgerError
from asyncrl.trainer.checkpoints.stored import Rows, Stored, read_rows

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of one parameter; ``step`` is a scalar."""
State = Mapping[Any, Mapping[str, Tensor]]
"""State of an optimizer by parameter."""


def state_tensors(state: State, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Optimizer state by name. Borrowed: the next step changes it in place."""
    return {
        f"{name}/{moment}": state[weight][moment]
        for name, weight in parameters.items()
        if weight in state
        for moment in MOMENTS
    }


def read_state(
    parameters: Mapping[str, nn.Parameter], tensors: Stored, make: Callable[[Tensor], Tensor] = torch.empty_like
) -> dict[Tensor, dict[str, Tensor]]:
    """
    Read this rank's rows of tensors from `state_tensors`, which are whole.

    ``make`` makes memory for a moment of a parameter.

    Raises:
        LedgerError: They do not fit.
    """
    _check(parameters, tensors)
    return {
        weight: {moment: _read(weight, tensors[f"{name}/{moment}"], make) for moment in MOMENTS}
        for name, weight in parameters.items()
        if f"{name}/{MOMENTS[0]}" in tensors
    }


def _read(weight: nn.Parameter, source: Rows, make: Callable[[Tensor], Tensor]) -> Tensor:
    """A moment, sharded like its weight; the scalar ``step`` is the same on every rank."""
    moment = make(weight.detach()) if len(source.shape) else torch.zeros((), device=weight.device)
    read_rows(moment, source)
    return moment


def _check(parameters: Mapping[str, nn.Parameter], tensors: Stored) -> None:
    for key, tensor in tensors.items():
        name, _, moment = key.rpartition("/")
        if name not in parameters or moment not in MOMENTS:
            raise LedgerError(f"optimizer state has {key!r}, which belongs to no trainable parameter of this model")
        missing = [other for other in MOMENTS if f"{name}/{other}" not in tensors]
        if missing:
            raise LedgerError(f"optimizer state of {name!r} lacks {', '.join(missing)}")
        expected = () if moment == "step" else tuple(parameters[name].shape)
        if tuple(tensor.shape) != expected:
            raise LedgerError(f"optimizer state {key!r}: expected shape {expected}, got {tuple(tensor.shape)}")
