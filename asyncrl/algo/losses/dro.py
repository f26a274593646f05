"""Policy gradient held to the old policy by a quadratic: no ratio, no clip, and data of any age."""

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def dro(tokens: Tokens, *, dro_beta: float) -> PolicyLoss:
    """
    REINFORCE less a spring.

        loss = -(A logprobs - dro_beta/2 (logprobs - old_logprobs)²)

    It rests where ``logprobs - old_logprobs = A / dro_beta``. A token without an advantage is pulled back, too.

    Args:
        tokens: N of them.
        dro_beta: Strength of the spring. There is no default: it has the scale of the advantages.

    Source:
        Richemond et al. 2024, arXiv:2405.19107, the policy's loss, token by token.
    """
    spring = (tokens.logprobs - tokens.old_logprobs).square()
    return PolicyLoss(0.5 * dro_beta * spring - tokens.advantages * tokens.logprobs)
