"""
Advantages from a baseline over the group, one number per trajectory.

In the formulas s is the total of a trajectory: its reward minus its penalties. A group with equal totals has advantages
of exactly zero, and the trainer skips such trajectories. A group of one keeps its total.
"""

from collections.abc import Sequence
from math import fsum, sqrt

import numpy as np

from asyncrl.algo.advantages.groups import on_every_token, per_group
from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.errors import AsyncrlError

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that a group of nearly equal totals does not explode."""


def grpo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the group, divided by its standard deviation.

        A_i = (s_i - mean(s)) / (std(s) + 1e-6),    std with n - 1 in the denominator

    Source:
        Shao et al. 2024, arXiv:2402.03300, sec. 4.1.
    """
    return on_every_token(outcomes, per_group(outcomes, lambda group: standardized(totals(group))))


def dr_grpo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the group, not divided, so that very easy and very hard prompts weigh no more.

        A_i = s_i - mean(s)

    Source:
        Liu et al. 2025, arXiv:2503.20783, sec. 3.
    """
    return on_every_token(outcomes, per_group(outcomes, lambda group: centred(totals(group))))


def grpo_passk(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Margin of the best trajectory of the group over the second; zero for all others.

        A_best = (s_best - s_second) / (std(s) + 1e-6),    all others 0

    Source:
        arXiv:2503.19595.
    """
    return on_every_token(outcomes, per_group(outcomes, _margin_of_the_best))


def rloo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the other trajectories of the group.

        A_i = s_i - mean(s_j, j != i) = n / (n - 1) (s_i - mean(s))

    Source:
        Ahmadian et al. 2024, arXiv:2402.14740.
    """

    def estimate(group: list[Outcome]) -> Floats:
        return centred(totals(group)) * (len(group) / max(len(group) - 1, 1))

    return on_every_token(outcomes, per_group(outcomes, estimate))


def opo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean weighted by length: the baseline of least variance if gradients grow with length.

        A_i = s_i - sum_j T_j s_j / sum_j T_j

    Source:
        Hao et al. 2025, arXiv:2505.23585.
    """
    return on_every_token(outcomes, per_group(outcomes, _minus_the_mean_by_length))


def gpg(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Total minus the mean of the group, divided by the share of trajectories of the step with a nonzero total.

        A_i = S / max(#{j: s_j != 0}, 1) (s_i - mean(s)),    S trajectories in the step

    Source:
        Chu et al. 2025, arXiv:2504.02546.
    """
    scale = len(outcomes) / max(int(np.count_nonzero(totals(outcomes))), 1)
    return on_every_token(outcomes, scale * per_group(outcomes, lambda group: centred(totals(group))))


def totals(outcomes: Sequence[Outcome]) -> Floats:
    """[n] reward minus penalties of each trajectory."""
    return np.array([outcome.total for outcome in outcomes], dtype=np.float64)


def centred(values: Floats) -> Floats:
    """[n] values minus their mean; exactly zero if all are equal. A single value is returned unchanged."""
    if len(values) == 1:
        return values.copy()
    if (values == values[0]).all():  # the mean of equal floats may be off by one bit, and zero must be zero
        return np.zeros_like(values)
    return values - fsum(values) / len(values)


def standardized(values: Floats) -> Floats:
    """`centred` values divided by their standard deviation, which counts as 1 for a single value."""
    return centred(values) / (_deviation(values) + STD_EPSILON)


def _deviation(values: Floats) -> float:
    if len(values) == 1:
        return 1.0
    return sqrt(fsum(centred(values) ** 2) / (len(values) - 1))


def _margin_of_the_best(group: list[Outcome]) -> Floats:
    if len(group) < 2:
        raise AsyncrlError(
            f"grpo_passk compares the best trajectory of a group with the second, but group {group[0].group_id} has "
            f"only one; set schedule.group_size to at least 2"
        )
    values = totals(group)
    second, best = np.argsort(values)[-2:]
    advantages = np.zeros_like(values)
    advantages[best] = (values[best] - values[second]) / (_deviation(values) + STD_EPSILON)
    return advantages


def _minus_the_mean_by_length(group: list[Outcome]) -> Floats:
    values, lengths = totals(group), np.array([outcome.length for outcome in group])
    if len(group) == 1:
        return values
    if (values == values[0]).all() or not lengths.any():
        return np.zeros_like(values)
    return values - fsum(lengths * values) / int(lengths.sum())
