"""Soft gate instead of a clip: the weight of a token falls smoothly with the distance of its ratio from 1."""

import torch

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def sapo(tokens: Tokens, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> PolicyLoss:
    """
    Policy-gradient loss with a sigmoid of the ratio, whose slope at ratio 1 is that of the ratio itself.

        r = exp(logprobs - old_logprobs)
        loss = -A · 4/τ · sigmoid(τ (r - 1)),   τ = tau_pos where A > 0, else tau_neg

    Args:
        tau_pos: Steepness of the gate at a positive advantage.
        tau_neg: Steepness otherwise. The gradient of a bad token spreads over the whole vocabulary and is less stable.

    Source:
        Gao et al. 2025, arXiv:2511.20347; defaults: its experiments.
    """
    tau = torch.full_like(tokens.advantages, tau_neg).masked_fill(tokens.advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (tokens.log_ratio().exp() - 1)) * (4 / tau)
    return PolicyLoss(-tokens.advantages * gate)
