"""
The clipped surrogate without a few of the tokens that would take most entropy away.

Entropy falls where advantage and log-probability are large together: their covariance picks those tokens out, before
anything is trained on, over the whole step.
"""

import torch

from asyncrl.algo.losses.ratio import FLOAT32_LOG_RATIO, log_ratio
from asyncrl.algo.losses.selection import CLIP_HIGH, CLIP_LOW
from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def clip_cov(tokens: Tokens, *, clip_low: float = CLIP_LOW, clip_high: float = CLIP_HIGH) -> PolicyLoss:
    """
    Clipped loss, zero on the tokens selected.

        r = exp(logprobs - old_logprobs)
        loss = 0 where selected, else max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Args:
        tokens: N of them, with ``is_selected`` by `asyncrl.algo.losses.selection.clip_cov_selection`.
        clip_low: A bad token's ratio stops mattering below ``1 - clip_low``...
        clip_high: ...and a good token's above ``1 + clip_high``.

    Returns:
        ``clip_fraction``: as for the clipped loss. ``selected_fraction``: left out.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (Clip-Cov).
    """
    advantages, ratio = tokens.advantages, log_ratio(tokens, FLOAT32_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, bounded).masked_fill(tokens.selected, 0)
    return PolicyLoss(losses, {"clip_fraction": bounded > unclipped, "selected_fraction": tokens.selected})
