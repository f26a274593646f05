"""
Importance weights of tokens sampled by another policy than the one in training.

    truncated   min(w, C)
    band        w where low ≤ w ≤ high, else 0    (IcePop)
"""

import torch
from torch import Tensor

from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import Importance

LIMIT = 20.0
"""Bound of log-ratios, nats: e²⁰ is half a billion, and its square is finite in float32."""

SMALLEST_MEAN = 1e-8
"""Weights are not divided by a smaller mean: a band has dropped all of them."""


def importance_weights(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """
    [N] weight of each token, equal within a sequence if ``importance.level`` is ``sequence``.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
        sequences: Sequences of the N tokens; with ``importance.normalize`` all those of the step.
    """
    weights = bounded(unbounded(log_ratio, sequences, importance), importance)
    return weights / normalizer(weights, sequences, importance) if importance.normalize else weights


def unbounded(log_ratio: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """[N] ratios of tokens, or of their sequences, before bounds."""
    if importance.level == "sequence":
        log_ratio = sequences.spread(sequences.sum(log_ratio))
    return log_ratio.clamp(-LIMIT, LIMIT).exp()


def bounded(weights: Tensor, importance: Importance) -> Tensor:
    """[N] weights clipped to the upper bound, or zero outside the band."""
    if importance.low is None:
        return weights.clamp(max=importance.high)
    is_outside = (weights < importance.low) | (weights > importance.high)
    return weights.masked_fill(is_outside, 0.0)


def normalizer(weights: Tensor, sequences: Ragged, importance: Importance) -> Tensor:
    """[] mean over tokens, or over nonempty sequences for sequence weights; 1 if it is nearly zero."""
    if importance.level == "sequence":
        mean = sequences.mean(weights).sum() / (sequences.lengths > 0).sum().clamp(min=1)
    else:
        mean = weights.sum() / max(len(weights), 1)
    return torch.where(mean > SMALLEST_MEAN, mean, torch.ones_like(mean))
