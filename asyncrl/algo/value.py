"""The critic's loss: squared error, flat where its prediction has already moved far enough."""

from typing import NamedTuple

import torch
from torch import Tensor


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
