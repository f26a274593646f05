"""
Generalized advantage estimation with a critic.

    rewards, values ─▶ temporal differences d_t ─▶ discounted sum Â ─┬─▶ + values ─▶ value targets of the critic
                                                                    └─▶ whitened ─▶ advantages
"""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.advantages.whiten import whitened
from asyncrl.algo.outcomes import Advantages, Floats, Outcome


def gae(outcomes: Sequence[Outcome], *, gamma: float = 1.0, lam: float = 1.0) -> Advantages:
    """
    Discounted sum of the critic's temporal differences, whitened over the step.

        d_t = r_t + gamma V_{t+1} - V_t,    Â_t = d_t + gamma lam Â_{t+1},    A = whiten(Â)

    After the last token V_{t+1} is 0. Compares no group.

    Args:
        outcomes: The whole step, with values.
        gamma: Discount per token.
        lam: 0 relies on the critic after one token, 1 on the rewards to the end.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    return whitened(_unwhitened(outcomes, gamma, lam))


def value_targets(outcomes: Sequence[Outcome], *, gamma: float = 1.0, lam: float = 1.0) -> list[Floats]:
    """
    [T] targets of the critic for each trajectory: ``Â_t + V_t``, with Â before whitening. Arguments as for `gae`.

    With ``lam`` 1 the targets are the returns: the critic's own values cancel.
    """
    unwhitened = _unwhitened(outcomes, gamma, lam)
    return [part + outcome.per_token("values", name="gae") for part, outcome in zip(unwhitened, outcomes, strict=True)]


def _unwhitened(outcomes: Sequence[Outcome], gamma: float, lam: float) -> list[Floats]:
    """[T] Â for each trajectory."""
    differences = []
    for outcome in outcomes:
        values = outcome.per_token("values", name="gae")
        next_values = np.append(values, 0.0)[1:]
        differences.append(outcome.rewards + gamma * next_values - values)
    return discounted(differences, gamma * lam)
