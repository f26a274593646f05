import numpy as np
import pytest

from asyncrl.algo.advantages.token_baseline import optimal_token_baseline
from asyncrl.algo.outcomes import Outcome

HALF = float(np.log(0.5))


def outcome(score: float, weights: list[float], importance: list[float] | None = None) -> Outcome:
    """Outcome whose tokens have these weights: with p = 1/2, w is the sum of squares."""
    return Outcome(
        group_id=1,
        length=len(weights),
        reward=score,
        logprobs=np.full(len(weights), HALF),
        sum_pi_squared=np.array(weights),
        importance=None if importance is None else np.array(importance),
    )


def test_siblings_count_by_the_weights_of_their_tokens_so_far() -> None:
    # baselines (1 * 4 + 3 * 0) / 4 = 1 and (2 * 4 + 6 * 0) / 8 = 1, then (3 * 4 + 6 * 0) / 9 = 4/3
    high, low = optimal_token_baseline([outcome(4.0, [1.0, 1.0, 1.0]), outcome(0.0, [3.0, 3.0, 0.0])])

    assert high == pytest.approx([3, 3, 4 - 4 / 3])
    assert low == pytest.approx([-1, -1, -4 / 3])


def test_where_the_longest_is_alone_there_is_no_baseline() -> None:
    long, short = optimal_token_baseline([outcome(4.0, [1.0, 1.0, 1.0]), outcome(0.0, [1.0])])

    assert long == pytest.approx([2, 4, 4])
    assert short == pytest.approx([-2])


def test_a_group_of_one_and_an_empty_sibling_leave_no_baseline() -> None:
    assert optimal_token_baseline([outcome(4.0, [1.0, 1.0])])[0].tolist() == [4.0, 4.0]
    assert [part.tolist() for part in optimal_token_baseline([outcome(4.0, [1.0]), outcome(1.0, [])])] == [[4.0], []]


def test_importance_counts_squared() -> None:
    # weights 1 and 2^2 * 1: baseline (4 + 0) / 5
    high, low = optimal_token_baseline([outcome(4.0, [1.0], [1.0]), outcome(0.0, [1.0], [2.0])])

    assert high == pytest.approx([4 - 4 / 5])
    assert low == pytest.approx([-4 / 5])


def test_where_everybody_was_certain_there_is_no_baseline() -> None:
    certain = Outcome(group_id=1, length=1, reward=2.0, logprobs=np.zeros(1), sum_pi_squared=np.ones(1))

    assert [part.tolist() for part in optimal_token_baseline([certain, certain])] == [[2.0], [2.0]]
