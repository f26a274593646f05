"""Limits of rewards."""

import math

import numpy as np
import pytest

from asyncrl.messages.verdict_limits import MAX_METRIC, MAX_METRICS, MAX_REWARD, problem_of


def test_a_verdict_at_its_limits_has_no_problem() -> None:
    most = {"m" * 98 + f"{n:02}": -MAX_METRIC for n in range(MAX_METRICS)}

    assert problem_of(MAX_REWARD, most, "a" * 200) == ""
    assert problem_of(-MAX_REWARD, {}, None) == ""


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e308, -1e6 - 1])
def test_a_reward_that_arithmetic_cannot_bear_is_named(reward: float) -> None:
    assert (
        problem_of(reward, {}, None)
        == f"the reward is {reward!r}, expected a finite number of at most 1e+06 either way"
    )


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"right": 1.0, "wrong": math.nan}, "metric 'wrong' is nan"),
        ({"wrong": 1e13}, "metric 'wrong' is 10000000000000.0, expected a finite number of at most 1e+12"),
        ({str(n): 0.0 for n in range(65)}, "there are 65 metrics, expected at most 64"),
        ({"n" * 5000: 0.0}, "a metric's name has 5000 characters, expected at most 100"),
        ({"": 0.0}, "a metric has the name '', expected letters in it"),
        (
            {"\x1b[31mred": 0.0},
            "metric '\\x1b[31mred' has the character U+001B in its name, expected",
        ),
        ({"a\nb": 0.0}, "metric 'a\\nb' has the character U+000A in its name"),
        ({"a\u202e": 0.0}, "metric 'a\\u202e' has the character U+202E in its name"),
    ],
)
def test_metrics_beyond_their_limits_are_named_in_a_short_text(metrics: dict[str, float], said: str) -> None:
    found = problem_of(0.0, metrics, None)

    assert said in found
    assert len(found) < 250


def test_an_answer_that_is_too_long_is_a_problem() -> None:
    assert problem_of(0.0, {}, "x" * 201) == "the extracted answer has 201 characters, expected at most 200"


def test_a_group_of_the_largest_rewards_is_finite_in_float32() -> None:
    rewards = np.array([MAX_REWARD, -MAX_REWARD] * 65_536, dtype=np.float32)

    assert np.isfinite(np.sum(rewards * rewards, dtype=np.float32))
