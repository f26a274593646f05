"""
One ratio a trajectory: the clip judges what was sampled as a whole, as the reward does.

Its bounds are some hundred times narrower than a token's: the mean of T log-ratios moves that much less.
"""

import torch

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens

MAX_LOG_RATIO = 10.0
"""Above, the ratio of a whole trajectory is cut."""


def gspo(tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> PolicyLoss:
    """
    Clipped loss with the geometric mean of a trajectory's ratios in place of each token's.

        s = exp(mean_t (logprobs - old_logprobs))            of the trajectory
        r = s · exp(logprobs - stop_gradient(logprobs))      s in value, a token's own in gradient
        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Averaged over tokens, then over trajectories, its gradient is that of the trajectory's clipped ratio.

    Args:
        tokens: N of them.
        clip_low: The ratio of a bad trajectory stops mattering below ``1 - clip_low``...
        clip_high: ...and that of a good one above ``1 + clip_high``.

    Returns:
        ``clip_fraction``: of tokens, as for the clipped loss; whole trajectories at a time.

    Source:
        Zheng et al. 2025, arXiv:2507.18071 (GSPO-token); defaults: its experiments.
    """
    advantages, logprobs = tokens.advantages, tokens.logprobs
    means = tokens.sequences.mean((logprobs - tokens.old_logprobs).detach())
    own = logprobs - logprobs.detach()  # exactly 0; only its gradient counts
    ratio = (tokens.sequences.spread(means) + own).clamp(max=MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(torch.maximum(unclipped, bounded), {"clip_fraction": bounded > unclipped})
