"""A soft gate in place of the clip: the further a ratio is from 1, the less its token still counts."""

import torch

from asyncrl.algo.losses.ratio import log_ratio
from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def sapo(tokens: Tokens, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> PolicyLoss:
    """
    Policy-gradient loss through a sigmoid of the ratio, whose slope at ratio 1 is that of the ratio itself.

        r = exp(logprobs - old_logprobs)
        loss = -A · 4/τ · sigmoid(τ (r - 1)),   τ = tau_pos where A > 0, else tau_neg

    Args:
        tokens: N of them.
        tau_pos: How sharply the gate falls for good tokens...
        tau_neg: ...and for bad ones, whose gradient spreads over all the tokens not chosen and is less stable.

    Source:
        Gao et al. 2025, arXiv:2511.20347; defaults: its experiments.
    """
    tau = torch.full_like(tokens.advantages, tau_neg).masked_fill(tokens.advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (log_ratio(tokens).exp() - 1)) * (4 / tau)
    return PolicyLoss(-tokens.advantages * gate)
