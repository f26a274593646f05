"""
Importance weights: how much a token counts that another policy sampled than the one in training.

    truncated   min(w, C)                       large weights are cut, small ones stay
    a band      w where low ≤ w ≤ high, else 0  what is far off either way says nothing (IcePop)
"""

import torch
from torch import Tensor

from asyncrl.algo.ragged import Ragged
from asyncrl.config.thresholds import Importance

LIMIT = 20.0
"""Nats beyond which log-ratios are cut: e²⁰ is half a billion, and its square is still a float32."""

SMALLEST_MEAN = 1e-8
"""Weights with a mean below are not divided by it: a band has dropped all of them."""


def importance_weights(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """
    Weight of each token.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
        sequences: Those of the N tokens. With ``importance.normalize``, all of the step.

    Returns:
        [N], equal within a sequence if the weights are those of sequences.
    """
    weights = bounded(unbounded(log_ratio, sequences, importance), importance)
    return weights / normalizer(weights, sequences, importance) if importance.normalize else weights


def unbounded(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """[N] ratios themselves."""
    if importance.level == "sequence":
        log_ratio = sequences.spread(sequences.sum(log_ratio))
    return log_ratio.clamp(-LIMIT, LIMIT).exp()


def bounded(weights: Tensor, importance: Importance) -> Tensor:
    """[N], with what lies outside the bounds cut or dropped."""
    if importance.low is None:
        return weights.clamp(max=importance.high)
    is_outside = (weights < importance.low) | (weights > importance.high)
    return weights.masked_fill(is_outside, 0.0)


def normalizer(weights: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """[] mean over tokens or, of the weights of sequences, over those that have any; 1 if there is next to none."""
    if importance.level == "sequence":
        mean = sequences.mean(weights).sum() / (sequences.lengths > 0).sum().clamp(min=1)
    else:
        mean = weights.sum() / max(len(weights), 1)
    return torch.where(mean > SMALLEST_MEAN, mean, torch.ones_like(mean))
