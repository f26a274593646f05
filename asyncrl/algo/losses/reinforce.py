"""Plain policy gradient: no ratio, no clip. GPG is this, with advantages of its own."""

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def reinforce(tokens: Tokens) -> PolicyLoss:
    """
    ``-A logprobs``. On data of another policy it wants the weights of the rollout correction.

    Args:
        tokens: N of them; ``old_logprobs`` are not read.

    Source:
        Williams 1992, "Simple statistical gradient-following algorithms"; Chu et al. 2025, arXiv:2504.02546 (GPG).
    """
    return PolicyLoss(-tokens.advantages * tokens.logprobs)
