import numpy as np
import pytest

from asyncrl.algo.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline
from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError


def outcome(group_id: int, length: int, score: float) -> Outcome:
    return Outcome(group_id=group_id, length=length, reward=score)


def test_rewards_to_come_are_whitened_over_the_step() -> None:
    # G = .5 1 | 0, mean .5, variance (0 + .25 + .25) / 2 = .25
    parts = reinforce_plus_plus([outcome(1, 2, 1.0), outcome(2, 1, 0.0)], gamma=0.5)

    assert [part.tolist() for part in parts] == [pytest.approx([0, 1]), pytest.approx([-1])]


def test_the_mean_is_over_tokens_and_not_over_trajectories() -> None:
    # s - mean = 1 -1, on tokens 1 -1 -1, mean -1/3, variance (16 + 4 + 4) / 9 / 2 = 4/3
    long, short = reinforce_plus_plus_baseline([outcome(1, 1, 3.0), outcome(1, 2, 1.0)])

    assert long == pytest.approx([4 / 3 / np.sqrt(4 / 3)])
    assert short == pytest.approx([-2 / 3 / np.sqrt(4 / 3)] * 2)


def test_a_group_of_one_keeps_what_it_got_before_whitening() -> None:
    # 2 | 0 0, whitened: mean 2/3, variance (16 + 4 + 4) / 9 / 2 = 4/3
    alone, *equal = reinforce_plus_plus_baseline([outcome(1, 1, 2.0), outcome(2, 1, 5.0), outcome(2, 1, 5.0)])

    assert alone == pytest.approx([4 / 3 / np.sqrt(4 / 3)])
    assert np.concatenate(equal) == pytest.approx([-2 / 3 / np.sqrt(4 / 3)] * 2)


def test_a_step_that_got_the_same_everywhere_teaches_exactly_nothing() -> None:
    step = [outcome(place // 2, 3, 0.1) for place in range(6)]

    for function in (reinforce_plus_plus, reinforce_plus_plus_baseline):
        assert not np.concatenate(function(step)).any()


@pytest.mark.parametrize("function", [reinforce_plus_plus, reinforce_plus_plus_baseline])
def test_a_step_of_one_token_is_refused_by_the_estimators_name(function) -> None:
    with pytest.raises(AsyncrlError, match=f"{function.__name__} compares the tokens"):
        function([outcome(1, 1, 1.0)])
