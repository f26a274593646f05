import numpy as np
import pytest

from asyncrl.algo.advantages.returns import discounted


def test_what_comes_later_counts_less() -> None:
    # 1 + .5 (2 + .5 * 4) = 3
    parts = discounted([np.array([1.0, 2.0, 4.0]), np.zeros(0), np.array([3.0])], 0.5)

    assert [part.tolist() for part in parts] == [[3.0, 4.0, 4.0], [], [3.0]]


def test_nothing_is_written_to_what_came_in() -> None:
    gains = [np.ones(3)]

    discounted(gains, 1.0)

    assert gains[0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("gains", [[], [np.zeros(0)], [np.zeros(0), np.zeros(0)]])
def test_there_may_be_no_tokens(gains: list[np.ndarray]) -> None:
    assert [part.tolist() for part in discounted(gains, 0.9)] == [[] for _ in gains]


def test_walking_all_at_once_is_walking_one_by_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        gains = [rng.normal(size=length) for length in rng.integers(0, 12, size=rng.integers(1, 8))]
        discount = rng.choice([0.0, 0.9, 1.0])
        for part, found in zip(gains, discounted(gains, discount), strict=True):
            powers = discount ** np.arange(len(part))
            assert found == pytest.approx([powers[: len(part) - t] @ part[t:] for t in range(len(part))])
