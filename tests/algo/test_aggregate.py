import numpy as np
import pytest

from asyncrl.algo.aggregate import Totals, resolve_aggregation
from asyncrl.config.catalogue import AGGREGATIONS


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # trajectories with losses (1, 2) and (3, 4, 5): sums 3 and 12, means 1.5 and 4
        pytest.param("token-mean", 3.0, id="token-mean: 15 / 5"),
        pytest.param("token-sum", 15.0, id="token-sum"),
        pytest.param("seq-mean-token-sum", 7.5, id="seq-mean-token-sum: (3 + 12) / 2"),
        pytest.param("seq-mean-token-sum-norm", 0.75, id="seq-mean-token-sum-norm: the same / 10"),
        pytest.param("seq-mean-token-mean", 2.75, id="seq-mean-token-mean: (1.5 + 4) / 2"),
        pytest.param("prompt-mean", 3.0, id="prompt-mean of one prompt: 15 / 5"),
    ],
)
def test_two_trajectories_by_hand(name: str, loss: float) -> None:
    weigh, totals = resolve_aggregation(name), Totals(num_tokens=5, num_trajectories=2, norm=10.0, group_tokens=5)
    assert 3 * weigh(2, totals) + 12 * weigh(3, totals) == pytest.approx(loss)


def test_two_prompts_of_one_trajectory_each_by_hand() -> None:
    weigh = resolve_aggregation("prompt-mean")
    first, second = (Totals(5, 2, num_groups=2, group_tokens=tokens) for tokens in (2, 3))
    assert 3 * weigh(2, first) + 12 * weigh(3, second) == pytest.approx((1.5 + 4) / 2)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # the same two, and a third trajectory of which every token was rejected
        ("token-mean", 3.0),
        ("token-sum", 15.0),
        ("seq-mean-token-sum", 5.0),
        ("seq-mean-token-sum-norm", 0.5),
        ("seq-mean-token-mean", 5.5 / 3),
    ],
)
def test_a_trajectory_without_tokens_counts_among_trajectories(name: str, loss: float) -> None:
    weigh, totals = resolve_aggregation(name), Totals(num_tokens=5, num_trajectories=3, norm=10.0)
    assert 3 * weigh(2, totals) + 12 * weigh(3, totals) + 0 * weigh(0, totals) == pytest.approx(loss)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_step_without_tokens_divides_by_nothing(name: str) -> None:
    assert np.isfinite(resolve_aggregation(name)(0, Totals(num_tokens=0, num_trajectories=0, norm=1.0)))
