"""
Policy gradient without the tokens whose probability changed too much, instead of those whose ratio did.

From 0.00001 to 0.001 the ratio is a hundred but the distribution hardly changes; from 0.99 to 0.8 the ratio is within
every clip but a fifth of the distribution has moved. The divergence is that of two outcomes: this token or any other.
"""

import torch
from torch import Tensor

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens

EPS = 1e-8
"""Keeps the logarithm of "any other token" finite for a certain token."""


def dppo_tv(tokens: Tokens, *, clip_low: float = 0.15, clip_high: float = 0.15, ratio_cap: float = 20.0) -> PolicyLoss:
    """
    Policy gradient where total variation is within a bound in the direction of the advantage.

        p = exp(logprobs),  q = exp(old_logprobs)
        keep = p - q <= clip_high where A > 0,  p - q >= -clip_low elsewhere
        loss = -A · stop_gradient(min(p / q, ratio_cap)) · logprobs where kept, else 0

    Returns:
        Metrics ``clip_fraction``: not kept; ``ratio_cap_fraction``: kept, with the weight clipped.

    Source:
        arXiv:2602.04879 (DPPO-Binary-TV; sec. 5.4 on the cap); default bounds: its experiments. The default cap is the
        one that verl's code names but never applies: its configuration always has a ``clip_ratio_c``, 3 if not set.
    """
    with torch.no_grad():
        gain = tokens.logprobs.exp() - tokens.old_logprobs.exp()
        is_kept = torch.where(tokens.advantages > 0, gain <= clip_high, gain >= -clip_low)
    return _loss(tokens, is_kept, ratio_cap)


def dppo_kl(tokens: Tokens, *, clip_low: float = 0.05, clip_high: float = 0.05, ratio_cap: float = 20.0) -> PolicyLoss:
    """
    Like `dppo_tv`, with the KL divergence of the two outcomes instead of total variation.

        kl = q log(q / p) + (1 - q) log((1 - q) / (1 - p))
        keep = kl <= clip_high or p <= q where A > 0,  kl <= clip_low or p >= q elsewhere

    Source:
        arXiv:2602.04879 (DPPO-Binary-KL); default bounds: verl's example.
    """
    with torch.no_grad():
        new, old = tokens.logprobs.exp(), tokens.old_logprobs.exp()
        others = (1 - old) * ((1 - old + EPS) / (1 - new + EPS)).log()
        kl = old * (tokens.old_logprobs - tokens.logprobs) + others
        is_free_up, is_free_down = (kl <= clip_high) | (new <= old), (kl <= clip_low) | (new >= old)
        is_kept = torch.where(tokens.advantages > 0, is_free_up, is_free_down)
    return _loss(tokens, is_kept, ratio_cap)


def _loss(tokens: Tokens, is_kept: Tensor, ratio_cap: float) -> PolicyLoss:
    """Importance-weighted policy gradient of kept tokens, and the metrics of both losses."""
    ratio = tokens.log_ratio().exp().detach()
    losses = -tokens.advantages * ratio.clamp(max=ratio_cap) * tokens.logprobs
    metrics = {"clip_fraction": ~is_kept, "ratio_cap_fraction": is_kept & (ratio > ratio_cap)}
    return PolicyLoss(losses.masked_fill(~is_kept, 0), metrics)
