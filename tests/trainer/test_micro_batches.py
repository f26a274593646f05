import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.trainer.micro_batches import micro_batches


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 400), st.floats(0, 1))
def test_every_trajectory_goes_once_into_a_rectangle_within_bounds(lengths, max_tokens, max_padding) -> None:
    batches = micro_batches(lengths, max_tokens, max_padding=max_padding)

    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        area = len(batch) * max(lengths[index] for index in batch)
        assert area <= max_tokens
        assert area - sum(lengths[index] for index in batch) <= max_padding * area + 1e-9
    widths = [[lengths[index] for index in batch] for batch in batches]
    assert [length for width in widths for length in width] == sorted(lengths)


def test_padding_counts_against_the_budget() -> None:
    # 3 rows of 4 are 12 tokens, though the trajectories have 11
    assert micro_batches([4, 3, 4], 12, max_padding=1.0) == [[1, 0, 2]]
    assert micro_batches([4, 3, 4], 11, max_padding=1.0) == [[1, 0], [2]]


def test_a_rectangle_closes_before_a_tenth_of_it_is_padding() -> None:
    # 10 and 11: 1 of 22 is padding; 10 and 20: 10 of 40
    assert micro_batches([10, 20, 11], 1000) == [[0, 2], [1]]


def test_a_trajectory_over_the_budget_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"trajectory 1 has 9 tokens.*at least 9"):
        micro_batches([3, 9], 8)


def test_nothing_needs_no_micro_batch() -> None:
    assert micro_batches([], 8) == []
