from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from asyncrl.trainer.algorithm.token_rewards import token_rewards
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from asyncrl.trainer.packing.untrained import as_context
from tests.trainer.episode_trajectories import episode


def rewarded(*rewards: float, verdict: float) -> TrainingTrajectory:
    """Three turns of 2, 1 and 3 tokens."""
    one = episode([(-1, [1], [2, 3]), (0, [4], [5]), (0, [6], [7, 8, 9])], reward=verdict)
    turns = [structs.replace(turn, reward=reward) for turn, reward in zip(one.turns, rewards, strict=True)]
    return replace(one, turns=turns)


def test_turns_are_rewarded_at_their_last_tokens_and_the_rest_of_the_verdict_comes_last() -> None:
    rewards = token_rewards(rewarded(0.5, 0.0, 0.25, verdict=1.0))
    assert rewards.tolist() == [0, 0.5, 0, 0, 0, 0.5]


def test_a_verdict_below_the_rewards_of_the_turns_takes_the_difference_back() -> None:
    assert token_rewards(rewarded(0.5, 0.25, 0.0, verdict=0.5)).tolist() == [0, 0.5, 0.25, 0, 0, -0.25]


def test_a_completion_is_rewarded_at_its_end() -> None:
    plain = replace(rewarded(0, 0, 0, verdict=2.0), turns=(), context_ids=np.zeros(0, np.int32))
    assert token_rewards(plain).tolist() == [0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("untrained", "expected"),
    [
        pytest.param([0, 1, 1, 0, 0, 0], [0.75, 0, 0, 1.25], id="to the token before"),
        pytest.param([1, 1, 0, 0, 0, 0], [0.25, 0, 0, 1.25], id="to nobody, because nothing before is trained"),
        pytest.param([0, 0, 0, 1, 1, 1], [0, 0.5, 1.5], id="the verdict too"),
        pytest.param([1, 1, 1, 1, 1, 1], [], id="nothing is trained"),
    ],
)
def test_the_reward_of_an_untrained_token_goes_to_the_trained_one_before(
    untrained: list[int], expected: list[float]
) -> None:
    cut = as_context(rewarded(0.5, 0.25, 0.25, verdict=2.0), np.array(untrained, np.bool_))
    assert token_rewards(cut).tolist() == expected
