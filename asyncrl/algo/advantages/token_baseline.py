"""
A token against what its siblings still had to gain when they were as far.

Siblings count the more, the more their tokens so far moved the policy's logits: that makes the baseline the one of
least variance, token by token.
"""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.advantages.groups import groups
from asyncrl.algo.advantages.needs import per_token
from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.outcomes import Advantages, Floats, Outcome

WEIGHT_EPSILON = 1e-8
"""Added to the weights of a token's siblings: where all were certain, there is no baseline."""


def optimal_token_baseline(outcomes: Sequence[Outcome]) -> Advantages:
    """
    What is still to come at a token, minus the weighted mean of that over the siblings which have such a token.

        w_t = 1 - 2 p_t + sum_v p_v^2    (times the squared importance weight, if there are any)
        W_t = sum_{u <= t} w_u,    A_it = G_it - sum_j G_jt W_jt / (sum_j W_jt + 1e-8)

    Where the longest of a group is alone there is nothing to compare with, and no baseline: so for a group of one.

    Raises:
        AsyncrlError: A trajectory lacks its log-probs or sums of squared probabilities.

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
    """[T] squared length of the gradient by the logits, of all tokens so far."""
    logprobs = per_token(outcome, "logprobs", name="optimal_token_baseline")
    sum_pi_squared = per_token(outcome, "sum_pi_squared", name="optimal_token_baseline")
    weights: Floats = 1.0 - 2.0 * np.exp(logprobs) + sum_pi_squared
    if outcome.importance is not None:
        weights = weights * outcome.importance.astype(np.float64) ** 2
    return weights.cumsum()


def _baseline(returns: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    """[T of the longest] of one group; zero where only one trajectory is left."""
    lengths = sorted([0, *(len(part) for part in returns)])
    second_longest, longest = lengths[-2:]
    weighted, total = np.zeros(longest), np.full(longest, WEIGHT_EPSILON)
    for to_come, weight in zip(returns, weights, strict=True):
        weighted[: len(to_come)] += to_come * weight
        total[: len(to_come)] += weight
    baseline: Floats = weighted / total
    baseline[second_longest:] = 0.0
    return baseline
