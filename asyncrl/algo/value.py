"""The critic's loss: squared error, flat where its prediction has already moved far enough. And how much it knows."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROUNDING = 1e-6
"""Of numbers that are added up, as a share of them."""


class ValueLoss(NamedTuple):
    """Losses of N tokens, and what is worth knowing about them."""

    losses: Tensor
    """[N], to be weighted and summed. Carries the gradient."""
    is_clipped: Tensor
    """[N] bool: the clipped prediction's error was the larger. No gradient."""


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float = 0.5) -> ValueLoss:
    """
    Half the squared error, or that of the prediction held near the old one, whichever is larger.

        clipped = old_values + clip(values - old_values, ±value_clip)
        loss = max((values - returns)², (clipped - returns)²) / 2

    Args:
        values: [N] predicted by the critic in training. Carries the gradient.
        old_values: [N] as predicted before the step.
        returns: [N] what they should have been.
        value_clip: How far a prediction may move from the old one.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, and the clip of OpenAI's PPO2; default: verl's.
    """
    bounded = old_values + (values - old_values).clamp(-value_clip, value_clip)
    unclipped_error, clipped_error = (values - returns).square(), (bounded - returns).square()
    return ValueLoss(0.5 * torch.maximum(unclipped_error, clipped_error), clipped_error > unclipped_error)


def explained_variance(values: NDArray[np.float64], returns: NDArray[np.float64]) -> float:
    """
    Share of what makes returns differ that the values foresaw.

        1 - Var(returns - values) / Var(returns)

    Args:
        values: [N] predicted.
        returns: [N] what they should have been.

    Returns:
        1 for all of it, 0 for none, less for worse than a constant; 0 if returns differ by no more than rounding.
    """
    if not len(returns):
        return 0.0
    variance = float(np.var(returns))
    if variance <= ROUNDING**2 * float(np.square(returns).mean()):
        return 0.0
    return 1.0 - float(np.var(returns - values)) / variance
