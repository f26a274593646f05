"""
Losses that treat the tokens apart that would reduce entropy most.

Entropy falls where advantage and log-probability covary. Tokens with a high covariance are selected over the whole
step, before any update, by the functions of `asyncrl.algo.losses.selection`.
"""

import torch

from asyncrl.algo.losses.selection import CLIP_HIGH, CLIP_LOW
from asyncrl.algo.losses.tokens import FLOAT32_LOG_RATIO, PolicyLoss, Tokens


def clip_cov(tokens: Tokens, *, clip_low: float = CLIP_LOW, clip_high: float = CLIP_HIGH) -> PolicyLoss:
    """
    Clipped loss, zero on selected tokens.

        r = exp(logprobs - old_logprobs)
        loss = 0 where selected, else max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Returns:
        Metrics ``clip_fraction``, as in `clipped`, and ``selected_fraction``.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (Clip-Cov).
    """
    advantages, ratio = tokens.advantages, tokens.log_ratio(FLOAT32_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, bounded).masked_fill(tokens.selected, 0)
    return PolicyLoss(losses, {"clip_fraction": bounded > unclipped, "selected_fraction": tokens.selected})


def kl_cov(tokens: Tokens, *, cov_kl_coef: float = 1.0) -> PolicyLoss:
    """
    Importance-weighted policy gradient without a clip, plus the distance from the old policy on selected tokens.

        d = logprobs - old_logprobs
        loss = -A exp(d) + cov_kl_coef |d| where selected, else -A exp(d)

    Returns:
        Metric ``selected_fraction``.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (KL-Cov); default: its experiments.
    """
    distance = tokens.log_ratio(FLOAT32_LOG_RATIO)
    penalty = cov_kl_coef * distance.abs().masked_fill(~tokens.selected, 0)
    return PolicyLoss(penalty - tokens.advantages * distance.exp(), {"selected_fraction": tokens.selected})
