"""
The clipped surrogate with two bounds and, for bad tokens, a third.

                 loss/|A|                                    loss/|A|
    A > 0   ──────╲                          A < 0              c ┬────────  dual clip
                   ╲                                              ╱
                    ╲________ 1 + clip_high                      ╱
                                             1 - clip_low ──────╱
              ratio ──▶                               ratio ──▶

PPO, GRPO and DAPO are parameters of it. Shapes: N tokens of completions, concatenated; no padding, so no mask.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.errors import AsyncrlError

MAX_LOG_RATIO = 20.0
"""Beyond e^20 a ratio says only that something is broken, and float32 must not overflow over it."""


class ClippedLoss(NamedTuple):
    """Losses of N tokens, and what is worth knowing about them."""

    losses: Tensor
    """[N], to be weighted and summed. Carries the gradient."""
    is_clipped: Tensor
    """[N] bool: the ratio had left the bounds on the side the advantage pushes to. No gradient."""
    is_dual_clipped: Tensor
    """[N] bool: the third bound was the one that held. No gradient."""
    log_ratio: Tensor
    """[N] logprobs - behavior_logprobs, within ±20. Minus its mean estimates KL(behavior, new). No gradient."""


def clipped_loss(
    logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
) -> ClippedLoss:
    """
    Policy-gradient loss of each token, flat where the step in its direction was already taken.

        r = exp(logprobs - behavior_logprobs)
        u = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
        loss = u where A >= 0,  min(u, -A dual_clip) where A < 0

    Args:
        logprobs: [N] under the policy being trained, nats. Carries the gradient.
        behavior_logprobs: [N] under the policy that sampled, nats.
        advantages: [N], constant within a trajectory.
        clip_low: A bad token's ratio stops mattering below ``1 - clip_low``...
        clip_high: ...and a good token's above ``1 + clip_high``.
        dual_clip: Bound of a bad token's loss, in advantages, above 1; 0 switches it off.

    Raises:
        AsyncrlError: The three tensors differ in shape.

    Source:
        Schulman et al. 2017, arXiv:1707.06347, eq. 7 (the clip); Yu et al. 2025, arXiv:2503.14476 (two bounds);
        Ye et al. 2020, arXiv:1912.09729 (the third bound).
    """
    if not logprobs.shape == behavior_logprobs.shape == advantages.shape:
        raise AsyncrlError(
            f"clipped_loss: expected three tensors of one shape, got logprobs {tuple(logprobs.shape)}, "
            f"behavior_logprobs {tuple(behavior_logprobs.shape)}, advantages {tuple(advantages.shape)}"
        )
    log_ratio = (logprobs - behavior_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, clipped)
    is_dual_clipped = torch.zeros_like(losses, dtype=torch.bool)
    if dual_clip:
        bound = -advantages * dual_clip
        is_dual_clipped = (advantages < 0) & (bound < losses)
        losses = torch.where(is_dual_clipped, bound, losses)
    return ClippedLoss(losses, clipped > unclipped, is_dual_clipped, log_ratio.detach())
