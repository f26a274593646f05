"""Loss of the critic, a clipped squared error, and the explained variance of its predictions."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROUNDING = 1e-6
"""Relative rounding error of the returns."""


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float = 0.5
) -> tuple[Tensor, Tensor]:
    """
    Half the larger of two squared errors: of the prediction, and of the prediction clipped near the old one.

        clipped = clip(values, old_values - value_clip, old_values + value_clip)
        loss = max((values - returns)², (clipped - returns)²) / 2

    Args:
        values: [N] predicted by the critic in training. Carries the gradient.
        old_values: [N] predictions before the step.
        returns: [N] targets.
        value_clip: Largest distance of the clipped prediction from the old one.

    Returns:
        [N] losses, to be weighted and summed, which carry the gradient, and [N] bool: the error of the clipped
        prediction is the larger one.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, and the clip of OpenAI's PPO2; default: verl's.
    """
    bounded = values.clamp(old_values - value_clip, old_values + value_clip)  # keeps a value within it bit for bit
    unclipped_error, clipped_error = (values - returns).square(), (bounded - returns).square()
    return 0.5 * torch.maximum(unclipped_error, clipped_error), clipped_error > unclipped_error


def explained_variance(values: NDArray[np.float64], returns: NDArray[np.float64]) -> float:
    """
    Fraction of the variance of [N] returns that [N] predicted values explain.

        1 - Var(returns - values) / Var(returns)

    Returns:
        1 at best, 0 for a constant, negative if worse than a constant; 0 if returns differ only by rounding.
    """
    if not len(returns):
        return 0.0
    variance = float(np.var(returns))
    if variance <= ROUNDING**2 * float(np.square(returns).mean()):
        return 0.0
    return 1.0 - float(np.var(returns - values)) / variance
