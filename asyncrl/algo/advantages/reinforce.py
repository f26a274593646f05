"""
A trajectory against the whole step: the mean over all its tokens is the baseline, their deviation the unit.

Both whiten over the step, so that a group whose trajectories all got the same still teaches, unless all others do too.
"""

from collections.abc import Sequence

from asyncrl.algo.advantages.group_baselines import dr_grpo
from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.advantages.whiten import whitened
from asyncrl.algo.outcomes import Advantages, Outcome


def reinforce_plus_plus(outcomes: Sequence[Outcome], *, gamma: float = 1.0) -> Advantages:
    """
    What is still to come at a token, whitened over the step. Needs no siblings.

        G_t = r_t + gamma G_{t+1},    A = whiten(G)

    Args:
        outcomes: The whole step.
        gamma: Discount of rewards that come later.

    Raises:
        AsyncrlError: The step has fewer than two tokens.

    Source:
        Hu et al. 2025, arXiv:2501.03262.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], gamma)
    return whitened(returns, name="reinforce_plus_plus")


def reinforce_plus_plus_baseline(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Above the mean of the group, on each token, whitened over the step. A group of one keeps what it got.

        A = whiten(s_i - mean(s))

    Raises:
        AsyncrlError: The step has fewer than two tokens.

    Source:
        Hu et al. 2025, arXiv:2501.03262.
    """
    return whitened(dr_grpo(outcomes), name="reinforce_plus_plus_baseline")
