"""Tokens with given ratios, for examples computed by hand."""

from collections.abc import Sequence
from math import log

import torch

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.loss_tokens import Tokens


def of_ratios(
    *ratios: float,
    advantages: Sequence[float],
    lengths: Sequence[int] | None = None,
    selected: Sequence[bool] | None = None,
    old_probability: float = 0.1,
) -> Tokens:
    """One trajectory per token, unless ``lengths`` is given; the old policy gives each ``old_probability``."""
    old = torch.full((len(ratios),), log(old_probability), dtype=torch.float64)
    return Tokens(
        logprobs=(old + torch.tensor([log(ratio) for ratio in ratios], dtype=torch.float64)).requires_grad_(),
        old_logprobs=old,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        sequences=Ragged(lengths or [1] * len(ratios)),
        is_selected=None if selected is None else torch.tensor(selected),
    )


def grad_of(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad
