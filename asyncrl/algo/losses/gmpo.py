"""
The geometric mean of a trajectory's ratios, each of them clipped, in place of the arithmetic.

One outlier among T tokens moves it by its T-th root, so the bounds may be wider.
"""

import torch

from asyncrl.algo.losses.ratio import FLOAT32_LOG_RATIO, log_ratio
from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def gmpo(tokens: Tokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> PolicyLoss:
    """
    One loss a trajectory, the same on all its tokens.

        d = logprobs - old_logprobs
        c = sgn(A) min(sgn(A) d, sgn(A) clip(d, -clip_low, clip_high))      of each token
        loss = -mean_t(A) exp(mean_t c)                                    of the trajectory

    Averaged over tokens, then over trajectories, it is the mean over trajectories.

    Args:
        tokens: N of them.
        clip_low: Nats a bad token's log-ratio may fall...
        clip_high: ...and a good token's rise.

    Returns:
        ``clip_fraction``: the token's log-ratio was cut.

    Source:
        Zhao et al. 2025, arXiv:2507.20673; defaults: its (e^-0.4, e^0.4).
    """
    sequences, sign = tokens.sequences, tokens.advantages.sign()
    plain = log_ratio(tokens, FLOAT32_LOG_RATIO)
    unclipped, bounded = sign * plain, sign * plain.clamp(-clip_low, clip_high)
    ratio = sequences.mean(sign * torch.minimum(unclipped, bounded)).exp()
    losses = sequences.spread(-sequences.mean(tokens.advantages) * ratio)
    return PolicyLoss(losses, {"clip_fraction": bounded < unclipped})
