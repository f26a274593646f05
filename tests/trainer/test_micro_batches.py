from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.trainer.micro_batches import micro_batches


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 400))
def test_every_trajectory_goes_once_into_a_micro_batch_within_the_budget(lengths, max_tokens) -> None:
    batches = micro_batches(lengths, max_tokens)

    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in batch) <= max_tokens for batch in batches)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 400))
def test_none_is_closed_while_the_next_trajectory_fits(lengths, max_tokens) -> None:
    sums = [[lengths[index] for index in batch] for batch in micro_batches(lengths, max_tokens)]
    assert all(sum(batch) + following[0] > max_tokens for batch, following in pairwise(sums))


def test_trajectories_of_one_length_are_neighbours_in_their_own_order() -> None:
    # sorted: 3 3 3 | 4 4 | 9
    assert micro_batches([4, 3, 9, 3, 4, 3], 9) == [[1, 3, 5], [0, 4], [2]]


def test_a_trajectory_over_the_budget_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"trajectory 1 has 9 tokens.*at least 9"):
        micro_batches([3, 9], 8)


def test_nothing_needs_no_micro_batch() -> None:
    assert micro_batches([], 8) == []
