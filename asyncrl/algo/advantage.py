"""
How much better than its siblings a trajectory was: one number for each trajectory of a group.

    rewards of a group ──▶ advantages of the group        floats in, floats out; knows no tensor

Both estimators centre a reward in its group, so a group whose rewards are all equal teaches nothing, and its
advantages are exactly zero: the trainer leaves such trajectories out of the forward pass.
"""

from collections.abc import Callable, Sequence
from math import fsum, sqrt

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that a group which hardly differs does not explode."""


def grpo(rewards: Sequence[float]) -> list[float]:
    """
    Reward minus the mean of its group, in standard deviations of the group.

        A_i = (r_i - mean(r)) / (std(r) + 1e-6),    std with n - 1 in the denominator

    A group of one has no siblings to compare with: its mean counts as 0 and its deviation as 1.

    Args:
        rewards: [n] of one group.

    Returns:
        [n] advantages, in the order of the rewards.

    Source:
        Shao et al. 2024, arXiv:2402.03300, sec. 4.1.
    """
    deviations = dr_grpo(rewards)
    if len(rewards) == 1:
        return [deviations[0] / (1.0 + STD_EPSILON)]
    std = sqrt(fsum(deviation**2 for deviation in deviations) / max(len(rewards) - 1, 1))
    return [deviation / (std + STD_EPSILON) for deviation in deviations]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """
    Reward minus the mean of its group, undivided: questions that are nearly solved, or hopeless, weigh no more.

        A_i = r_i - mean(r)

    A group of one keeps its reward.

    Args:
        rewards: [n] of one group.

    Returns:
        [n] advantages, in the order of the rewards.

    Source:
        Liu et al. 2025, arXiv:2503.20783, sec. 3.
    """
    if len(rewards) == 1:
        return list(rewards)
    if len(set(rewards)) <= 1:  # the mean of equal floats may be off by one bit, and zero must be zero
        return [0.0] * len(rewards)
    mean = fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


ADVANTAGES: dict[str, Callable[[Sequence[float]], list[float]]] = {"grpo": grpo, "dr_grpo": dr_grpo}
"""By the name in ``algorithm.advantage``."""
