"""
Returns, whitened over all tokens of the step or compared with a greedy answer.

With whitening, a group of equal rewards has nonzero advantages unless the whole step is equal.
"""

from collections.abc import Sequence

from asyncrl.algo.advantages.group_baselines import dr_grpo
from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.advantages.whiten import whitened
from asyncrl.algo.outcomes import Advantages, Outcome


def reinforce_plus_plus(outcomes: Sequence[Outcome], *, gamma: float = 1.0) -> Advantages:
    """
    Discounted return at each token, whitened over the step. Compares no group.

        G_t = r_t + gamma G_{t+1},    A = whiten(G)

    Source:
        Hu et al. 2025, arXiv:2501.03262.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], gamma)
    return whitened(returns)


def reinforce_plus_plus_baseline(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Reward minus the mean of the group, on each token, whitened over the step. A group of one keeps its reward.

        A = whiten(s_i - mean(s))

    Source:
        Hu et al. 2025, arXiv:2501.03262.
    """
    return whitened(dr_grpo(outcomes))


def remax(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Return at a token minus the reward of the greedy answer to the same prompt. Compares no group.

        A_t = sum_{u >= t} r_u - b,    b the reward of the greedy answer

    Source:
        Li et al. 2023, arXiv:2310.10505.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], 1.0)
    baselines = [outcome.greedy_reward(name="remax") for outcome in outcomes]
    return [part - baseline for part, baseline in zip(returns, baselines, strict=True)]
