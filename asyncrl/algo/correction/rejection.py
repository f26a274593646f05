"""Rejection: tokens and sequences too far from the policy in training to be learned from."""

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algo.correction.weights import LIMIT
from asyncrl.algo.ragged import Ragged
from asyncrl.config.thresholds import Rejection

DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.neg,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: log_ratio.expm1() - log_ratio,
}
"""Of the sampler from the trainer, estimated on one token. k1 may be negative."""

OVER_SEQUENCE = {"seq_sum": Ragged.sum, "seq_mean": Ragged.mean, "seq_max": Ragged.max}


def kept(log_ratio: Tensor, sequences: Ragged, rejection: Rejection) -> Tensor:
    """
    What one rejection leaves in the loss.

    A divergence that is not a number is kept: nothing that is broken may vanish before the loss shows it.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
        sequences: Those of the N tokens.

    Returns:
        [N] bool; all tokens of a sequence alike unless it is tokens that are rejected.
    """
    measured = divergence(log_ratio, sequences, rejection)
    is_kept = ~((measured < rejection.low) | (measured > rejection.high))
    return is_kept if rejection.scope == "token" else sequences.spread(is_kept)


def divergence(log_ratio: Tensor, sequences: Ragged, rejection: Rejection) -> Tensor:
    """What is compared with the threshold: [N] of tokens, or [S] of sequences."""
    of_tokens = DIVERGENCES[rejection.divergence](log_ratio.clamp(-LIMIT, LIMIT))
    return of_tokens if rejection.scope == "token" else OVER_SEQUENCE[rejection.scope](sequences, of_tokens)
