import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError


def test_the_reward_is_on_the_last_token_and_penalties_on_all() -> None:
    outcome = Outcome(group_id=1, length=3, reward=2.0, penalties=np.array([0.5, 0.0, 0.25]))

    assert outcome.rewards.tolist() == [-0.5, 0.0, 1.75]
    assert outcome.total == 1.25
    assert Outcome(group_id=1, length=0, reward=2.0).rewards.tolist() == []


def test_rewards_of_tokens_are_where_they_were_given_and_the_total_is_the_verdict() -> None:
    rewards, penalties = np.array([0.0, 0.5, 0.0, 1.5]), np.array([0.25, 0.0, 0.0, 0.25])
    outcome = Outcome(group_id=1, length=4, reward=2.0, token_rewards=rewards, penalties=penalties)

    assert outcome.rewards.tolist() == [-0.25, 0.5, 0.0, 1.25]
    assert outcome.total == outcome.rewards.sum() == 1.5


def test_numbers_of_tokens_are_float64_whatever_their_type() -> None:
    outcome = Outcome(group_id=1, length=2, reward=0.0, values=np.ones(2, dtype=np.float32))

    assert outcome.per_token("values", name="gae").dtype == np.float64


@pytest.mark.parametrize(("values", "got"), [(None, "none"), (np.zeros(3), "3")])
def test_a_missing_or_too_long_field_is_refused(values: np.ndarray | None, got: str) -> None:
    with pytest.raises(AsyncrlError, match=f"gae needs values for each of 2 tokens .* of group 7, got {got}"):
        Outcome(group_id=7, length=2, reward=0.0, values=values).per_token("values", name="gae")


def test_a_missing_greedy_answer_is_refused() -> None:
    with pytest.raises(AsyncrlError, match="remax needs the reward of a greedy answer to the prompt of group 7"):
        Outcome(group_id=7, length=2, reward=0.0).greedy_reward(name="remax")
