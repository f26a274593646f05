"""
Policy gradient weighted by a clipped ratio: no token is ever left out of the gradient.

The clipped surrogate gives rare tokens that became likely, often the turns of a thought, no gradient at all; here the
bound is on the weight, and the gradient of log π always flows.
"""

from asyncrl.algo.losses.ratio import log_ratio
from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def cispo(tokens: Tokens, *, clip_low: float = 10.0, clip_high: float = 0.2) -> PolicyLoss:
    """
    REINFORCE with truncated importance weights.

        w = stop_gradient(clip(exp(logprobs - old_logprobs), 1 - clip_low, 1 + clip_high))
        loss = -w A logprobs

    Args:
        tokens: N of them.
        clip_low: Weights are at least ``1 - clip_low``; from 1 on there is no lower bound.
        clip_high: Weights are at most ``1 + clip_high``.

    Returns:
        ``clip_fraction``: the weight was cut.

    Source:
        MiniMax 2025, arXiv:2506.13585 (CISPO). The paper has no lower bound and keeps its upper one to itself:
        both defaults are those of verl's example.
    """
    ratio = log_ratio(tokens).exp().detach()
    weights = ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(-weights * tokens.advantages * tokens.logprobs, {"clip_fraction": weights != ratio})
