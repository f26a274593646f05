from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.trainer.packing.micro_batches import Size, micro_batches, num_tokens

SIZES = st.lists(st.builds(Size, st.integers(0, 9), st.just(10), st.integers(0, 40)), max_size=60)
BUDGETS = st.integers(50, 400)


@given(SIZES, BUDGETS)
def test_every_trajectory_goes_once_into_a_micro_batch_within_the_budget(sizes, max_tokens):
    batches = micro_batches(sizes, max_tokens)

    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(num_tokens(sizes[index] for index in batch) <= max_tokens for batch in batches)


@given(SIZES, BUDGETS)
def test_none_is_closed_while_the_next_trajectory_fits(sizes, max_tokens):
    for batch, following in pairwise(micro_batches(sizes, max_tokens)):
        assert num_tokens(sizes[index] for index in (*batch, following[0])) > max_tokens


@given(SIZES, BUDGETS)
def test_a_group_is_begun_once_and_gone_on_with_until_it_is_done(sizes, max_tokens):
    order = [sizes[index].group_id for batch in micro_batches(sizes, max_tokens) for index in batch]
    assert order == sorted(order, key=[size.group_id for size in sizes].index)


def test_a_prompt_counts_once_in_each_micro_batch() -> None:
    a, b = [Size(0, 5, 4), Size(0, 5, 3)], [Size(1, 6, 2), Size(1, 6, 1)]
    assert num_tokens(a + b) == 5 + 4 + 3 + 6 + 2 + 1
    assert micro_batches(a + b, 21) == [[0, 1, 2, 3]]
    assert micro_batches(a + b, 20) == [[0, 1, 2], [3]]
    assert micro_batches(a + b, 11) == [[0], [1], [2, 3]]


def test_a_trajectory_over_the_budget_is_refused_with_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"trajectory 1 has 9 tokens.*at least 9"):
        micro_batches([Size(0, 1, 2), Size(1, 4, 5)], 8)


def test_nothing_needs_no_micro_batch() -> None:
    assert micro_batches([], 8) == []
