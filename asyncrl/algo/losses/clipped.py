"""
Clipped surrogate with two bounds and, at negative advantages, a third (dual clip).

                 loss/|A|                                    loss/|A|
    A > 0   ──────╲                          A < 0              c ┬────────  dual clip
                   ╲                                              ╱
                    ╲________ 1 + clip_high                      ╱
                                             1 - clip_low ──────╱
              ratio ──▶                               ratio ──▶

PPO, GRPO and DAPO use it with different bounds.
"""

import torch

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def clipped(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = 3.0) -> PolicyLoss:
    """
    Policy-gradient loss of each token, flat where the ratio has left the bounds in the direction of the advantage.

        r = exp(logprobs - old_logprobs)
        u = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
        loss = u where A >= 0,  min(u, -A dual_clip) where A < 0

    Args:
        dual_clip: Bound of a bad token's loss in units of -A, above 1; 0 switches it off.

    Returns:
        Metrics ``clip_fraction``: the ratio has left the bounds in the direction of the advantage;
        ``dual_clip_fraction``: the third bound applies.

    Source:
        Schulman et al. 2017, arXiv:1707.06347, eq. 7 (the clip); Yu et al. 2025, arXiv:2503.14476 (two bounds, and
        their defaults); Ye et al. 2020, arXiv:1912.09729 (the third bound, and its default).
    """
    advantages, ratio = tokens.advantages, tokens.log_ratio().exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, bounded)
    is_dual_clipped = torch.zeros_like(losses, dtype=torch.bool)
    if dual_clip:
        ceiling = -advantages * dual_clip
        is_dual_clipped = (advantages < 0) & (ceiling < losses)
        losses = torch.where(is_dual_clipped, ceiling, losses)
    return PolicyLoss(losses, {"clip_fraction": bounded > unclipped, "dual_clip_fraction": is_dual_clipped})
