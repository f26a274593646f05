"""The order of rows: each once per epoch, and the same for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data.epochs import Epochs, permutation


def test_the_order_of_an_epoch_never_changes() -> None:
    """Fixed values: a run resumed on another machine or Python must not repeat or skip prompts."""
    assert permutation(8, seed=0, epoch=0) == [0, 5, 3, 7, 1, 6, 4, 2]
    assert permutation(8, seed=0, epoch=1) == [4, 0, 2, 5, 1, 7, 3, 6]
    assert permutation(8, seed=1, epoch=0) == [1, 3, 0, 4, 5, 6, 2, 7]
    assert permutation(8, seed=0, epoch=0, stream=1) == [7, 6, 3, 2, 4, 1, 5, 0]


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 5))
def test_every_row_comes_once_an_epoch(size: int, seed: int, epoch: int, stream: int) -> None:
    assert sorted(permutation(size, seed, epoch, stream)) == list(range(size))


def test_every_order_is_as_likely_as_any_other() -> None:
    """All 6 orders of 3 rows, 6000 seeds: each within 5 standard deviations (29 each) of 1000."""
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(permutation(3, seed, 0))
        seen[order] = seen.get(order, 0) + 1

    assert len(seen) == 6
    assert all(abs(times - 1000) < 145 for times in seen.values())


def test_files_of_one_size_have_orders_of_their_own() -> None:
    assert permutation(50, 0, 0, stream=1) != permutation(50, 0, 0, stream=2)


def test_without_a_seed_rows_keep_their_order() -> None:
    epochs = Epochs([4, 7, 9], seed=None)
    assert len(epochs) == 3
    assert [epochs.at(position) for position in range(5)] == [(0, 4), (0, 7), (0, 9), (1, 4), (1, 7)]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9, unique=True), st.lists(st.integers(0, 60), max_size=20))
def test_a_position_has_the_same_row_in_any_order_of_calls(rows: list[int], asked: list[int]) -> None:
    in_order = [Epochs(rows, seed=3).at(position) for position in range(61)]
    epochs = Epochs(rows, seed=3)

    assert [epochs.at(position) for position in asked] == [in_order[position] for position in asked]


@pytest.mark.parametrize("seed", [None, 0])
def test_an_epoch_is_every_row_once(seed: int | None) -> None:
    epochs = Epochs([5, 6, 8, 12], seed)
    for epoch in range(4):
        drawn = [epochs.at(4 * epoch + place) for place in range(4)]
        assert {number for number, _ in drawn} == {epoch}
        assert sorted(row for _, row in drawn) == [5, 6, 8, 12]
