"""
One ratio per trajectory: the clip applies to whole trajectories, like the reward.

Its bounds are about a hundred times narrower than those of tokens, because the mean of T log-ratios varies less.
"""

import torch

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens

MAX_LOG_RATIO = 10.0
"""Upper bound of the log-ratio of a trajectory."""


def gspo(tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> PolicyLoss:
    """
    Clipped loss with the geometric mean of a trajectory's ratios instead of the ratio of each token.

        s = exp(mean_t (logprobs - old_logprobs))            of the trajectory
        r = s · exp(logprobs - stop_gradient(logprobs))      value of s, gradient of the token
        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Averaged over tokens, then over trajectories, its gradient is that of the clipped ratio of trajectories.

    Returns:
        Metric ``clip_fraction``, as in `clipped`, equal within a trajectory.

    Source:
        Zheng et al. 2025, arXiv:2507.18071 (GSPO-token); defaults: its experiments.
    """
    advantages, logprobs = tokens.advantages, tokens.logprobs
    means = tokens.sequences.mean((logprobs - tokens.old_logprobs).detach())
    own = logprobs - logprobs.detach()  # exactly 0, with a gradient
    ratio = (tokens.sequences.spread(means) + own).clamp(max=MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(torch.maximum(unclipped, bounded), {"clip_fraction": bounded > unclipped})
