"""pass@m and majority, by hand and against counting every way to draw."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.evaluation.pass_at_k import curve_points, majority, pass_at


@pytest.mark.parametrize(
    ("m", "num_samples", "num_correct", "expected"),
    [
        pytest.param(1, 4, 1, 0.25, id="one try: the share that is right"),
        pytest.param(2, 4, 1, 0.5, id="half of the pairs hold the right one"),
        pytest.param(2, 4, 2, 5 / 6, id="one pair of six holds neither"),
        pytest.param(3, 4, 2, 1.0, id="no three without a right one"),
        pytest.param(4, 4, 0, 0.0, id="never right"),
        pytest.param(1, 1, 1, 1.0, id="always right"),
    ],
)
def test_pass_at_m_by_hand(m: int, num_samples: int, num_correct: int, expected: float) -> None:
    assert pass_at(m, num_samples=num_samples, num_correct=num_correct) == pytest.approx(expected)


@given(st.integers(1, 9), st.data())
def test_pass_at_m_is_the_share_of_draws_that_hold_a_right_one(num_samples: int, data: st.DataObject) -> None:
    num_correct = data.draw(st.integers(0, num_samples))
    m = data.draw(st.integers(1, num_samples))
    draws = list(combinations([True] * num_correct + [False] * (num_samples - num_correct), m))

    expected = sum(map(any, draws)) / len(draws)
    assert pass_at(m, num_samples=num_samples, num_correct=num_correct) == pytest.approx(expected)


@given(st.integers(1, 8), st.integers(1, 8), st.floats(0, 1))
def test_its_expectation_is_the_true_pass_at_m_for_any_n(n: int, m: int, p: float) -> None:
    """Summed over every outcome of n independent completions."""
    n = max(n, m)
    draws = [sum(chosen) for chosen in _outcomes(n)]
    expectation = sum(p**c * (1 - p) ** (n - c) * pass_at(m, num_samples=n, num_correct=c) for c in draws)
    assert expectation == pytest.approx(1 - (1 - p) ** m)


def _outcomes(n: int) -> list[tuple[int, ...]]:
    return [tuple(outcome >> i & 1 for i in range(n)) for outcome in range(2**n)]


def test_it_is_exact_for_astronomical_numbers_of_draws() -> None:
    assert pass_at(512, num_samples=1024, num_correct=1) == pytest.approx(0.5)


@pytest.mark.parametrize(("m", "num_samples", "num_correct"), [(0, 4, 1), (5, 4, 1), (2, 4, 5), (1, 0, 0)])
def test_more_tries_than_completions_are_refused(m: int, num_samples: int, num_correct: int) -> None:
    with pytest.raises(ValueError, match="expected 1 <= m"):
        pass_at(m, num_samples=num_samples, num_correct=num_correct)


@pytest.mark.parametrize(
    ("answers", "corrects", "expected"),
    [
        pytest.param(["7", "8", "7"], [1.0, 0.0, 1.0], 1.0, id="two of three are right"),
        pytest.param(["7", "8", "8"], [1.0, 0.0, 0.0], 0.0, id="two of three are wrong"),
        pytest.param(["7", "8", "8", "7", "9"], [1, 0, 0, 1, 0], 0.5, id="a tie counts half"),
        pytest.param(["7", "8", "9"], [1, 0, 0], 1 / 3, id="nobody agrees"),
        pytest.param(["7", "", "", ""], [1, 0, 0, 0], 1.0, id="no answer is no vote"),
        pytest.param(["", ""], [0.0, 0.0], 0.0, id="nobody votes"),
        pytest.param([], [], 0.0, id="nobody is asked"),
    ],
)
def test_the_most_frequent_answer_decides(answers: list[str], corrects: list[float], expected: float) -> None:
    assert majority(answers, corrects) == pytest.approx(expected)


@given(st.lists(st.sampled_from(["", "1", "2", "3"]), max_size=9), st.randoms(use_true_random=False))
def test_the_order_of_completions_decides_nothing(answers: list[str], random: Random) -> None:
    shuffled = answers.copy()
    random.shuffle(shuffled)
    right = {"1"}
    one, other = (majority(some, [float(answer in right) for answer in some]) for some in (answers, shuffled))
    assert one == pytest.approx(other)


@pytest.mark.parametrize(("samples", "points"), [(1, [1]), (2, [1, 2]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_pass_at_m_is_reported_for_powers_of_two_and_for_all(samples: int, points: list[int]) -> None:
    assert list(curve_points(samples)) == points
