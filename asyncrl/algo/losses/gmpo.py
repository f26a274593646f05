"""
Geometric instead of arithmetic mean of a trajectory's clipped ratios.

One outlier among T tokens changes the mean by its T-th root, so the bounds may be wider.
"""

import torch

from asyncrl.algo.losses.tokens import FLOAT32_LOG_RATIO, PolicyLoss, Tokens


def gmpo(tokens: Tokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> PolicyLoss:
    """
    One loss per trajectory, equal on all its tokens.

        d = logprobs - old_logprobs
        c = sgn(A) min(sgn(A) d, sgn(A) clip(d, -clip_low, clip_high))      of each token
        loss = -mean_t(A) exp(mean_t c)                                    of the trajectory

    Its average over tokens, then over trajectories, is the mean of the losses of trajectories.

    Returns:
        Metric ``clip_fraction``: the token's log-ratio is clipped.

    Source:
        Zhao et al. 2025, arXiv:2507.20673; defaults: its (e^-0.4, e^0.4).
    """
    sequences, sign = tokens.sequences, tokens.advantages.sign()
    plain = tokens.log_ratio(FLOAT32_LOG_RATIO)
    unclipped, bounded = sign * plain, sign * plain.clamp(-clip_low, clip_high)
    ratio = sequences.mean(sign * torch.minimum(unclipped, bounded)).exp()
    losses = sequences.spread(-sequences.mean(tokens.advantages) * ratio)
    return PolicyLoss(losses, {"clip_fraction": bounded < unclipped})
