import numpy as np
import pytest

from asyncrl.algo.advantages.whiten import whitened


def test_mean_is_zero_and_variance_one_over_all_tokens() -> None:
    # mean 2, deviations -2 0 2, variance 8 / 2 = 4
    parts = whitened([np.array([0.0, 2.0]), np.zeros(0), np.array([4.0])])

    assert [part.tolist() for part in parts] == [pytest.approx([-1, 0]), [], pytest.approx([1])]


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9 / 3])
def test_tokens_that_are_all_equal_become_exactly_zero(value: float) -> None:
    parts = whitened([np.full(3, value), np.full(4, value)])

    assert [part.tolist() for part in parts] == [[0.0] * 3, [0.0] * 4]


@pytest.mark.parametrize("parts", [[], [np.zeros(0)], [np.ones(1), np.zeros(0)]])
def test_fewer_than_two_tokens_do_not_differ_and_become_zero(parts: list[np.ndarray]) -> None:
    assert [part.tolist() for part in whitened(parts)] == [[0.0] * len(part) for part in parts]
