"""
AdamW's moments as named tensors, so that they can lie in a safetensors file: ``<parameter>/<moment>``.

Moments of a parameter that never had a step are absent, and stay absent after a round trip.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from asyncrl.errors import LedgerError
from asyncrl.trainer.ranks.sharding import share

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for each parameter; ``step`` is one number."""


def state_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's state by name. Borrowed: the next step changes it in place."""
    return {
        f"{name}/{moment}": optimizer.state[weight][moment]
        for name, weight in parameters.items()
        if weight in optimizer.state
        for moment in MOMENTS
    }


def restore_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """
    Put back what `state_tensors` gave, bit for bit. Copied.

    Raises:
        LedgerError: The tensors are not the moments of these parameters; nothing was changed.
    """
    _check(parameters, tensors)
    optimizer.state.clear()
    for name, weight in parameters.items():
        if f"{name}/{MOMENTS[0]}" in tensors:
            optimizer.state[weight] = {moment: _like(weight, tensors[f"{name}/{moment}"]) for moment in MOMENTS}


def _like(weight: nn.Parameter, moment: Tensor) -> Tensor:
    """A copy where the weight is; of a weight that is spread over ranks, this rank's share. Steps are everybody's."""
    return share(moment.clone(), weight) if moment.dim() else moment.to(weight.device, copy=True)


def _check(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
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
