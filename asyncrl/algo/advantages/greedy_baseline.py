"""A trajectory against the greedy answer to the same prompt."""

from collections.abc import Sequence

from asyncrl.algo.advantages.needs import greedy_score
from asyncrl.algo.advantages.returns import discounted
from asyncrl.algo.outcomes import Advantages, Outcome


def remax(outcomes: Sequence[Outcome]) -> Advantages:
    """
    What is still to come at a token, minus what the greedy answer got. Needs no siblings.

        A_t = sum_{u >= t} r_u - b,    b the score of the greedy answer

    Raises:
        AsyncrlError: A trajectory lacks its baseline.

    Source:
        Li et al. 2023, arXiv:2310.10505.
    """
    returns = discounted([outcome.rewards for outcome in outcomes], 1.0)
    baselines = [greedy_score(outcome, name="remax") for outcome in outcomes]
    return [to_come - baseline for to_come, baseline in zip(returns, baselines, strict=True)]
