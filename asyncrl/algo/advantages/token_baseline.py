"""
Baseline per token from the returns of the group at the same position.

Each trajectory of the group is weighted by the squared gradient norm of its tokens so far, with respect to the logits,
which gives the baseline of least variance at every token.
"""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.advantages.groups import groups
from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.outcomes import Advantages, Floats, Outcome

WEIGHT_EPSILON = 1e-8
"""Added to the sum of weights: the baseline is 0 where every trajectory was certain."""


def optimal_token_baseline(outcomes: Sequence[Outcome]) -> Advantages:
    """
    Return at a token minus the weighted mean return over the trajectories of the group that reach this position.

        w_t = 1 - 2 p_t + sum_v p_v^2    (times the squared importance weight, if there are any)
        W_t = sum_{u <= t} w_u,    A_it = G_it - sum_j G_jt W_jt / (sum_j W_jt + 1e-8)

    The baseline is 0 at positions that only one trajectory reaches, so also for a group of one.

    Source:
        arXiv:2602.07078.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], 1.0)
    weights = [_weights(outcome) for outcome in outcomes]
    advantages: list[Floats] = [np.zeros(0)] * len(outcomes)
    for places in groups(outcomes).values():
        baseline = _baseline([returns[place] for place in places], [weights[place] for place in places])
        for place in places:
            advantages[place] = returns[place] - baseline[: outcomes[place].length]
    return advantages


def _weights(outcome: Outcome) -> Floats:
    """[T] squared norm of the gradient with respect to the logits, summed over all tokens so far."""
    logprobs = outcome.per_token("logprobs", name="optimal_token_baseline")
    sum_pi_squared = outcome.per_token("sum_pi_squared", name="optimal_token_baseline")
    weights: Floats = 1.0 - 2.0 * np.exp(logprobs) + sum_pi_squared
    if outcome.importance is not None:
        weights = weights * outcome.importance.astype(np.float64) ** 2
    return weights.cumsum()


def _baseline(returns: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    """[longest T] of one group; zero at positions that only one trajectory reaches."""
    lengths = sorted([0, *(len(part) for part in returns)])
    second_longest, longest = lengths[-2:]
    weighted, total = np.zeros(longest), np.full(longest, WEIGHT_EPSILON)
    for part, weight in zip(returns, weights, strict=True):
        weighted[: len(part)] += part * weight
        total[: len(part)] += weight
    baseline: Floats = weighted / total
    baseline[second_longest:] = 0.0
    return baseline
