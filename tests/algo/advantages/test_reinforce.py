from collections.abc import Callable

import numpy as np
import pytest

from asyncrl.algo.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline, remax
from asyncrl.algo.outcomes import Advantages, Outcome


def outcome(group_id: int, length: int, reward: float) -> Outcome:
    return Outcome(group_id=group_id, length=length, reward=reward)


def test_returns_are_whitened_over_the_step() -> None:
    # G = .5 1 | 0, mean .5, variance (0 + .25 + .25) / 2 = .25
    parts = reinforce_plus_plus([outcome(1, 2, 1.0), outcome(2, 1, 0.0)], gamma=0.5)

    assert [part.tolist() for part in parts] == [pytest.approx([0, 1]), pytest.approx([-1])]


def test_the_mean_is_over_tokens_and_not_over_trajectories() -> None:
    # s - mean = 1 -1, on tokens 1 -1 -1, mean -1/3, variance (16 + 4 + 4) / 9 / 2 = 4/3
    long, short = reinforce_plus_plus_baseline([outcome(1, 1, 3.0), outcome(1, 2, 1.0)])

    assert long == pytest.approx([4 / 3 / np.sqrt(4 / 3)])
    assert short == pytest.approx([-2 / 3 / np.sqrt(4 / 3)] * 2)


def test_a_group_of_one_keeps_its_reward_before_whitening() -> None:
    # 2 | 0 0, whitened: mean 2/3, variance (16 + 4 + 4) / 9 / 2 = 4/3
    alone, *equal = reinforce_plus_plus_baseline([outcome(1, 1, 2.0), outcome(2, 1, 5.0), outcome(2, 1, 5.0)])

    assert alone == pytest.approx([4 / 3 / np.sqrt(4 / 3)])
    assert np.concatenate(equal) == pytest.approx([-2 / 3 / np.sqrt(4 / 3)] * 2)


def test_a_step_of_equal_rewards_has_advantages_of_exactly_zero() -> None:
    step = [outcome(place // 2, 3, 0.1) for place in range(6)]

    for function in (reinforce_plus_plus, reinforce_plus_plus_baseline):
        assert not np.concatenate(function(step)).any()


@pytest.mark.parametrize("function", [reinforce_plus_plus, reinforce_plus_plus_baseline])
def test_a_step_of_one_token_has_no_advantage(function: Callable[..., Advantages]) -> None:
    assert function([outcome(1, 1, 1.0)])[0].tolist() == [0.0]


def test_returns_are_compared_with_the_greedy_answer() -> None:
    # rewards -.5 0 3, returns 2.5 3 3, greedy 1
    outcome = Outcome(group_id=1, length=3, reward=3.0, baseline=1.0, penalties=np.array([0.5, 0.0, 0.0]))

    assert remax([outcome])[0].tolist() == [1.5, 2.0, 2.0]


def test_a_trajectory_as_good_as_the_greedy_answer_has_advantage_zero() -> None:
    assert remax([Outcome(group_id=1, length=2, reward=0.1, baseline=0.1)])[0].tolist() == [0.0, 0.0]
