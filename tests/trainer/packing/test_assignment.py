"""Every trajectory is assigned to one rank, loads are balanced, and all ranks run equally many micro-batches."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.trainer.packing.step import (
    TrajectorySize,
    assign_ranks,
    first_sharing,
    micro_batches,
    num_tokens,
    rank_micro_batches,
)

SIZES = st.lists(st.builds(TrajectorySize, st.integers(0, 6), st.just(7), st.integers(0, 90)), max_size=40)
RANKS = st.integers(1, 5)


def sizes(*lengths: int) -> list[TrajectorySize]:
    """Sizes of trajectories of different groups."""
    return [TrajectorySize(place, 1, length - 1) for place, length in enumerate(lengths)]


def loads(given: list[TrajectorySize], owners: list[int], ranks: int) -> list[int]:
    return [num_tokens(size for size, by in zip(given, owners, strict=True) if by == rank) for rank in range(ranks)]


def test_the_longest_go_first_to_the_least_loaded_rank() -> None:
    assert assign_ranks(sizes(5, 9, 1, 7, 2), 2) == [1, 0, 0, 1, 0]  # 9 | 7, then 5 to the second, 2 and 1 to the first


def test_groups_stay_together_where_ranks_are_not_the_worse_for_it() -> None:
    groups = [TrajectorySize(group, 10, length) for group in range(4) for length in (3, 5)]
    assert assign_ranks(groups, 2) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert max(loads(groups, assign_ranks(groups, 2), 2)) == 2 * (10 + 3 + 5)


def test_a_group_is_parted_before_a_rank_has_nothing_to_do() -> None:
    group = [TrajectorySize(0, 2, 50), TrajectorySize(0, 2, 40), TrajectorySize(0, 2, 10)]
    assert assign_ranks(group, 2) == [0, 1, 1]


@given(SIZES, RANKS)
def test_no_rank_has_more_than_its_share_and_one_trajectory(given, ranks):
    alone = [size.total for size in given]
    most = max(loads(given, assign_ranks(given, ranks), ranks))
    assert most <= sum(alone) / ranks + max(alone, default=0)


@given(SIZES, RANKS, st.data())
def test_all_ranks_together_pass_every_trajectory_once_in_equally_many_passes(given, ranks, data):
    owners = assign_ranks(given, ranks)
    places = data.draw(st.lists(st.sampled_from(range(len(given))), unique=True)) if given else []
    made = [
        rank_micro_batches(places, given, owners, rank=rank, num_ranks=ranks, max_tokens=100) for rank in range(ranks)
    ]

    assert len({len(one) for one in made}) == 1
    assert sorted(place for one in made for batch in one for place in batch) == sorted(places)
    for rank, one in enumerate(made):
        assert all(owners[place] == rank for batch in one for place in batch)
        assert all(num_tokens(given[place] for place in batch) <= 100 for batch in one)


@given(SIZES, RANKS)
def test_ranks_that_share_their_rows_count_as_one_by_the_name_of_the_first(given, ranks):
    assert assign_ranks(given, 4 * ranks, sequence_parallel=4) == [4 * owner for owner in assign_ranks(given, ranks)]
    assert [first_sharing(rank, 4) for rank in (0, 3, 4, 7)] == [0, 0, 4, 4]


def test_unassigned_trajectories_are_in_no_micro_batch() -> None:
    assert rank_micro_batches([0, 1], sizes(3, 4), [-1, 0], rank=0, num_ranks=1, max_tokens=10) == [[1]]


# ── test micro batches ────────────────────────────────────────────────────────────────────────

SIZES_MICRO_BATCHES = st.lists(
    st.builds(TrajectorySize, st.integers(0, 9), st.just(10), st.integers(0, 40)), max_size=60
)
BUDGETS = st.integers(50, 400)


@given(SIZES_MICRO_BATCHES, BUDGETS)
def test_every_trajectory_goes_once_into_a_micro_batch_within_the_budget(sizes, max_tokens):
    batches = micro_batches(sizes, max_tokens)

    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(num_tokens(sizes[index] for index in batch) <= max_tokens for batch in batches)


@given(SIZES_MICRO_BATCHES, BUDGETS)
def test_none_is_closed_while_the_next_trajectory_fits(sizes, max_tokens):
    for batch, following in pairwise(micro_batches(sizes, max_tokens)):
        assert num_tokens(sizes[index] for index in (*batch, following[0])) > max_tokens


@given(SIZES_MICRO_BATCHES, BUDGETS)
def test_a_group_is_begun_once_and_gone_on_with_until_it_is_done(sizes, max_tokens):
    order = [sizes[index].group_id for batch in micro_batches(sizes, max_tokens) for index in batch]
    assert order == sorted(order, key=[size.group_id for size in sizes].index)


def test_a_prompt_counts_once_in_each_micro_batch() -> None:
    a, b = [TrajectorySize(0, 5, 4), TrajectorySize(0, 5, 3)], [TrajectorySize(1, 6, 2), TrajectorySize(1, 6, 1)]
    assert num_tokens(a + b) == 5 + 4 + 3 + 6 + 2 + 1
    assert micro_batches(a + b, 21) == [[0, 1, 2, 3]]
    assert micro_batches(a + b, 20) == [[0, 1, 2], [3]]
    assert micro_batches(a + b, 11) == [[0], [1], [2, 3]]


def test_a_trajectory_over_the_budget_is_refused_with_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"trajectory 1 has 9 tokens.*at least 9"):
        micro_batches([TrajectorySize(0, 1, 2), TrajectorySize(1, 4, 5)], 8)


def test_nothing_needs_no_micro_batch() -> None:
    assert micro_batches([], 8) == []
