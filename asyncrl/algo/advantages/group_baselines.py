"""
A trajectory against its siblings: what it got, minus what a trajectory of this prompt usually gets.

They differ in what "usually" is and in the unit. A group whose trajectories all got the same teaches nothing, and its
advantages are exactly zero: the trainer leaves such trajectories out. A group of one has no siblings, and keeps what
it got. What a trajectory got is its score less its penalties.
"""

from collections.abc import Sequence
from math import fsum, sqrt

import numpy as np

from asyncrl.algo.advantages.groups import on_every_token, per_group
from asyncrl.algo.outcomes import Advantages, Floats, Outcome
from asyncrl.errors import AsyncrlError

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that a group which hardly differs does not explode."""


def grpo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Above the mean of the group, in its standard deviations.

        A_i = (s_i - mean(s)) / (std(s) + 1e-6),    std with n - 1 in the denominator

    Source:
        Shao et al. 2024, arXiv:2402.03300, sec. 4.1.
    """
    return on_every_token(outcomes, per_group(outcomes, lambda group: standardized(totals(group))))


def dr_grpo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Above the mean of the group, undivided: questions that are nearly solved, or hopeless, weigh no more.

        A_i = s_i - mean(s)

    Source:
        Liu et al. 2025, arXiv:2503.20783, sec. 3.
    """
    return on_every_token(outcomes, per_group(outcomes, lambda group: centred(totals(group))))


def grpo_passk(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Only the best of a group counts, by as much as it is better than the second.

        A_best = (s_best - s_second) / (std(s) + 1e-6),    all others 0

    Raises:
        AsyncrlError: A group of one has no second.

    Source:
        arXiv:2503.19595.
    """
    return on_every_token(outcomes, per_group(outcomes, _lead_of_the_best))


def rloo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Above the mean of the others.

        A_i = s_i - mean(s_j, j != i) = n / (n - 1) (s_i - mean(s))

    Source:
        Ahmadian et al. 2024, arXiv:2402.14740.
    """

    def estimate(group: list[Outcome]) -> Floats:
        return centred(totals(group)) * (len(group) / max(len(group) - 1, 1))

    return on_every_token(outcomes, per_group(outcomes, estimate))


def opo(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Above the mean of the group's tokens: the baseline of least variance if gradients grow with length.

        A_i = s_i - sum_j T_j s_j / sum_j T_j

    Source:
        Hao et al. 2025, arXiv:2505.23585.
    """
    return on_every_token(outcomes, per_group(outcomes, _above_the_mean_token))


def gpg(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Above the mean of the group, scaled up for the trajectories of the step that got nothing.

        A_i = S / max(#{j: s_j != 0}, 1) (s_i - mean(s)),    S trajectories in the step

    Source:
        Chu et al. 2025, arXiv:2504.02546.
    """
    scale = len(outcomes) / max(int(np.count_nonzero(totals(outcomes))), 1)
    return on_every_token(outcomes, scale * per_group(outcomes, lambda group: centred(totals(group))))


def totals(outcomes: Sequence[Outcome]) -> Floats:
    """[n] what each trajectory got."""
    return np.array([outcome.total for outcome in outcomes], dtype=np.float64)


def centred(values: Floats) -> Floats:
    """[n] minus their mean; exactly zero if all are equal. The mean of one value counts as 0."""
    if len(values) == 1:
        return values.copy()
    if (values == values[0]).all():  # the mean of equal floats may be off by one bit, and zero must be zero
        return np.zeros_like(values)
    return values - fsum(values) / len(values)


def standardized(values: Floats) -> Floats:
    """[n] minus their mean, in standard deviations; exactly zero if all are equal. That of one value counts as 1."""
    return centred(values) / (_deviation(values) + STD_EPSILON)


def _deviation(values: Floats) -> float:
    if len(values) == 1:
        return 1.0
    return sqrt(fsum(centred(values) ** 2) / (len(values) - 1))


def _lead_of_the_best(group: list[Outcome]) -> Floats:
    if len(group) < 2:
        raise AsyncrlError(
            f"grpo_passk compares the best trajectory of a group with the second, but group {group[0].group_id} has "
            f"only one; use schedule.group_size of at least 2"
        )
    got = totals(group)
    second, best = np.argsort(got)[-2:]
    advantages = np.zeros_like(got)
    advantages[best] = (got[best] - got[second]) / (_deviation(got) + STD_EPSILON)
    return advantages


def _above_the_mean_token(group: list[Outcome]) -> Floats:
    got, lengths = totals(group), np.array([outcome.length for outcome in group])
    if len(group) == 1:
        return got
    if (got == got[0]).all() or not lengths.any():
        return np.zeros_like(got)
    return got - fsum(lengths * got) / int(lengths.sum())
