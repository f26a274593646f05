"""Policy gradient with a quadratic penalty on the log-ratio: no ratio, no clip, for data of any age."""

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def dro(tokens: Tokens, *, dro_beta: float) -> PolicyLoss:
    """
    REINFORCE with a quadratic penalty.

        loss = -(A logprobs - dro_beta/2 (logprobs - old_logprobs)²)

    The minimum is at ``logprobs - old_logprobs = A / dro_beta``, also for a token with advantage zero.

    Args:
        dro_beta: Weight of the penalty. Its scale is that of the advantages, so there is no default.

    Source:
        Richemond et al. 2024, arXiv:2405.19107, the policy's loss, per token.
    """
    penalty = (tokens.logprobs - tokens.old_logprobs).square()
    return PolicyLoss(0.5 * dro_beta * penalty - tokens.advantages * tokens.logprobs)
