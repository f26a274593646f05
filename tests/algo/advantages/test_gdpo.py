import numpy as np
import pytest

from asyncrl.algo.advantages.gdpo import gdpo
from asyncrl.algo.outcomes import Advantages, Outcome
from asyncrl.errors import AsyncrlError


def group(*metrics: dict[str, float], reward: float = 0.0) -> list[Outcome]:
    return [Outcome(group_id=1, length=2, reward=reward, metrics=each) for each in metrics]


def flat(advantages: Advantages) -> np.ndarray:
    return np.concatenate(advantages)


def test_a_loud_reward_does_not_drown_a_quiet_one() -> None:
    """Each is brought to its own unit first, so that opposite rewards of whatever size cancel."""
    step = group({"loud": 1000.0, "quiet": 0.0}, {"loud": 0.0, "quiet": 0.1})

    assert flat(gdpo(step, reward_weights={"loud": 1.0, "quiet": 1.0})) == pytest.approx([0] * 4, abs=0.1)
    assert flat(gdpo(step, reward_weights={"loud": 2.0, "quiet": 1.0}))[0] > 0.5
    assert flat(gdpo(step, reward_weights={"loud": 1.0, "quiet": 2.0}))[0] < -0.5


def test_one_reward_alone_is_grpo_whitened() -> None:
    # A = +-a on two tokens each: mean 0, variance 4 a^2 / 3
    advantages = flat(gdpo(group({"right": 1.0}, {"right": 0.0}), reward_weights={"right": 1.0}))

    assert advantages == pytest.approx(np.sqrt(3 / 4) * np.array([1, 1, -1, -1]))


def test_rewards_that_are_all_equal_teach_exactly_nothing() -> None:
    assert not flat(gdpo(group({"right": 0.1}, {"right": 0.1}), reward_weights={"right": 1.0})).any()


def test_the_reward_of_the_verdict_is_one_of_the_metrics() -> None:
    step = [Outcome(group_id=1, length=1, reward=reward) for reward in (1.0, 0.0)]

    assert flat(gdpo(step, reward_weights={"reward": 1.0}))[0] > 0


def test_a_verdict_without_the_metric_is_told_with_what_it_has() -> None:
    with pytest.raises(AsyncrlError, match="names 'format', but a verdict of group 1 has only right, reward"):
        gdpo(group({"right": 1.0}, {"right": 1.0}), reward_weights={"format": 1.0})


def test_without_a_reward_there_is_nothing_to_compare() -> None:
    with pytest.raises(AsyncrlError, match=r"name some in algorithm\.reward_weights"):
        gdpo(group({"right": 1.0}), reward_weights={})
