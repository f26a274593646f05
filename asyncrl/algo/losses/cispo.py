"""
Policy gradient weighted by a clipped ratio: every token has a gradient.

The clipped surrogate gives no gradient to rare tokens that became likely, which often change the course of reasoning.
Here the clip is on the weight of the gradient of log π.
"""

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def cispo(tokens: Tokens, *, clip_low: float = 10.0, clip_high: float = 0.2) -> PolicyLoss:
    """
    REINFORCE with truncated importance weights.

        w = stop_gradient(clip(exp(logprobs - old_logprobs), 1 - clip_low, 1 + clip_high))
        loss = -w A logprobs

    With ``clip_low`` of 1 or more there is no lower bound.

    Returns:
        Metric ``clip_fraction``: the weight is clipped.

    Source:
        MiniMax 2025, arXiv:2506.13585 (CISPO). The paper has no lower bound and does not state its upper one:
        both defaults are those of verl's example.
    """
    ratio = tokens.log_ratio().exp().detach()
    weights = ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(-weights * tokens.advantages * tokens.logprobs, {"clip_fraction": weights != ratio})
