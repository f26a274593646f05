import numpy as np
import pytest

from asyncrl.algo.advantages.needs import greedy_score, per_token
from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError


def test_numbers_of_tokens_are_float64_whatever_they_came_as() -> None:
    outcome = Outcome(group_id=1, length=2, reward=0.0, values=np.ones(2, dtype=np.float32))  # type: ignore[arg-type]

    assert per_token(outcome, "values", name="gae").dtype == np.float64


@pytest.mark.parametrize(("values", "got"), [(None, "none"), (np.zeros(3), "3")])
def test_what_is_missing_or_too_long_is_told(values: np.ndarray | None, got: str) -> None:
    with pytest.raises(AsyncrlError, match=f"gae needs values of each of 2 tokens .* of group 7, got {got}"):
        per_token(Outcome(group_id=7, length=2, reward=0.0, values=values), "values", name="gae")


def test_a_missing_greedy_answer_is_told() -> None:
    with pytest.raises(AsyncrlError, match="remax needs the score of a greedy answer to the prompt of group 7"):
        greedy_score(Outcome(group_id=7, length=2, reward=0.0), name="remax")
