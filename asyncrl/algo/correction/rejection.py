"""Rejection of tokens and sequences that are too far from the policy in training."""

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algo.correction.weights import LIMIT
from asyncrl.algo.ragged import Ragged
from asyncrl.config.correction import Rejection

DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.neg,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: log_ratio.expm1() - log_ratio,
}
"""Divergence of the sampler from the trainer, estimated on one token. k1 may be negative."""

OVER_SEQUENCE = {"seq_sum": Ragged.sum, "seq_mean": Ragged.mean, "seq_max": Ragged.max}


def kept(log_ratio: Tensor, sequences: Ragged, rejection: Rejection) -> Tensor:
    """
    [N] bool: tokens that one rejection keeps in the loss; equal within a sequence unless the rejection is per token.

    A token whose divergence is NaN is kept, so that the error reaches the loss.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
    """
    measured = divergence(log_ratio, sequences, rejection)
    is_kept = ~((measured < rejection.low) | (measured > rejection.high))
    return is_kept if rejection.scope == "token" else sequences.spread(is_kept)


def divergence(log_ratio: Tensor, sequences: Ragged, rejection: Rejection) -> Tensor:
    """Divergence to compare with the threshold: [N] of tokens or [S] of sequences."""
    of_tokens = DIVERGENCES[rejection.divergence](log_ratio.clamp(-LIMIT, LIMIT))
    return of_tokens if rejection.scope == "token" else OVER_SEQUENCE[rejection.scope](sequences, of_tokens)
