"""
Plain importance-weighted policy gradient, with a penalty on the tokens that would take most entropy away.

Nothing is clipped: the tokens whose advantage and log-probability covary most, over the whole step, are held back.
"""

from asyncrl.algo.losses.ratio import FLOAT32_LOG_RATIO, log_ratio
from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def kl_cov(tokens: Tokens, *, cov_kl_coef: float = 1.0) -> PolicyLoss:
    """
    Policy-gradient loss, and the distance from the old policy where a token was selected.

        d = logprobs - old_logprobs
        loss = -A exp(d) + cov_kl_coef |d| where selected, else -A exp(d)

    Args:
        tokens: N of them, with ``is_selected`` by `asyncrl.algo.losses.selection.kl_cov_selection`.
        cov_kl_coef: Weight of the distance.

    Returns:
        ``selected_fraction``: held back.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (KL-Cov); default: its experiments.
    """
    distance = log_ratio(tokens, FLOAT32_LOG_RATIO)
    penalty = cov_kl_coef * distance.abs().masked_fill(~tokens.selected, 0)
    return PolicyLoss(penalty - tokens.advantages * distance.exp(), {"selected_fraction": tokens.selected})
