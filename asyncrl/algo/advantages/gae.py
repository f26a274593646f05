"""
A token against a critic.

    rewards, values ─▶ surprises d_t ─▶ summed ahead ─┬─▶ + values ─▶ what the critic should have said
                                                      └─▶ whitened ─▶ advantages
"""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.advantages.needs import per_token
from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.advantages.whiten import whitened
from asyncrl.algo.outcomes import Advantages, Floats, Outcome


def gae(outcomes: Sequence[Outcome], *, gamma: float = 1.0, lam: float = 1.0) -> Advantages:
    """
    What a token brought that the critic had not expected, and what came of it, whitened over the step.

        d_t = r_t + gamma V_{t+1} - V_t,    Â_t = d_t + gamma lam Â_{t+1},    A = whiten(Â)

    Nothing comes after the last token: there V_{t+1} is 0. Needs no siblings.

    Args:
        outcomes: The whole step, with values.
        gamma: Discount of rewards that come later.
        lam: How far it looks ahead instead of trusting the critic: 0 one token, 1 to the end.

    Raises:
        AsyncrlError: A trajectory lacks its values, or the step has fewer than two tokens.

    Source:
        Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    return whitened(_surprises_ahead(outcomes, gamma, lam), name="gae")


def value_targets(outcomes: Sequence[Outcome], *, gamma: float = 1.0, lam: float = 1.0) -> list[Floats]:
    """
    What the critic should have said: ``Â_t + V_t``, with Â as it is before whitening.

    Args:
        outcomes: With values.
        gamma: As in `gae`.
        lam: As in `gae`; with 1, the targets are the returns and the critic's own values cancel.

    Returns:
        [T] of each trajectory.

    Raises:
        AsyncrlError: A trajectory lacks its values.
    """
    ahead = _surprises_ahead(outcomes, gamma, lam)
    return [part + per_token(outcome, "values", name="gae") for part, outcome in zip(ahead, outcomes, strict=True)]


def _surprises_ahead(outcomes: Sequence[Outcome], gamma: float, lam: float) -> list[Floats]:
    """[T] Â of each trajectory."""
    surprises = []
    for outcome in outcomes:
        values = per_token(outcome, "values", name="gae")
        next_values = np.append(values, 0.0)[1:]
        surprises.append(outcome.rewards + gamma * next_values - values)
    return discounted(surprises, gamma * lam)
