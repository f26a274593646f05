"""
Effective sample size of importance weights, as a share of the samples.

    ess = (Σ w)² / (n Σ w²)        1: all weights are equal; 1/n: one sample outweighs all others

The sums are kept as logarithms, so that no weight overflows, and those of parts add up to those of the whole.
"""

import torch
from torch import Tensor


def log_sums(log_weights: Tensor, count: Tensor | None = None) -> Tensor:
    """
    [3] log Σ w, log Σ w² and n, of n weights given as logarithms [n], nats; -inf, -inf and 0 without any.

    Nothing waits for the device. ``count`` is n if weights are left out, whose logarithm is -inf.
    """
    if count is None:
        count = log_weights.new_full((), len(log_weights))
    return torch.stack((log_weights.logsumexp(0), (2 * log_weights).logsumexp(0), count))


def combined(parts: Tensor) -> Tensor:
    """[..., 3] sums of the whole, from those of P parts [P, ..., 3]."""
    logs, counts = parts[..., :2].logsumexp(0), parts[..., 2:].sum(0)
    return torch.cat((logs, counts), -1)


def effective_sample_size(sums: Tensor) -> Tensor:
    """
    [...] effective sample size as a share of the samples, in (0, 1], from sums [..., 3] of at least one weight.

    Source:
        Kish 1965, Survey Sampling; Kong 1992, A note on importance sampling using standardized weights.
    """
    return (2 * sums[..., 0] - sums[..., 1] - sums[..., 2].log()).exp()
