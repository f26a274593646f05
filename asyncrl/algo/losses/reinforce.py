"""Plain policy gradient without ratio and clip. GPG is this loss with its own advantages."""

from asyncrl.algo.losses.tokens import PolicyLoss, Tokens


def reinforce(tokens: Tokens) -> PolicyLoss:
    """
    ``-A logprobs``. ``old_logprobs`` are not read; off-policy data needs the weights of ``[algorithm.correction]``.

    Source:
        Williams 1992, "Simple statistical gradient-following algorithms"; Chu et al. 2025, arXiv:2504.02546 (GPG).
    """
    return PolicyLoss(-tokens.advantages * tokens.logprobs)
