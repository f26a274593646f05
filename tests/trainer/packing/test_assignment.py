"""Every trajectory is trained by one rank, loads are alike, and all ranks make equally many passes."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.trainer.packing.assignment import owners, passes
from asyncrl.trainer.packing.micro_batches import Size, num_tokens

SIZES = st.lists(st.builds(Size, st.integers(0, 6), st.just(7), st.integers(0, 90)), max_size=40)
RANKS = st.integers(1, 5)


def sizes(*lengths: int) -> list[Size]:
    """Of trajectories that share nothing."""
    return [Size(place, 1, length - 1) for place, length in enumerate(lengths)]


def loads(chosen: list[Size], owner: list[int], ranks: int) -> list[int]:
    return [num_tokens(size for size, by in zip(chosen, owner, strict=True) if by == rank) for rank in range(ranks)]


def test_the_longest_go_first_to_whoever_has_least() -> None:
    assert owners(sizes(5, 9, 1, 7, 2), 2) == [1, 0, 0, 1, 0]  # 9 | 7, then 5 to the second, 2 and 1 to the first


def test_groups_stay_together_where_ranks_are_not_the_worse_for_it() -> None:
    groups = [Size(group, 10, length) for group in range(4) for length in (3, 5)]
    assert owners(groups, 2) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert max(loads(groups, owners(groups, 2), 2)) == 2 * (10 + 3 + 5)


def test_a_group_is_parted_before_a_rank_has_nothing_to_do() -> None:
    group = [Size(0, 2, 50), Size(0, 2, 40), Size(0, 2, 10)]
    assert owners(group, 2) == [0, 1, 1]


@given(SIZES, RANKS)
def test_no_rank_has_more_than_its_share_and_one_trajectory(chosen, ranks) -> None:
    alone = [size.alone for size in chosen]
    most = max(loads(chosen, owners(chosen, ranks), ranks))
    assert most <= sum(alone) / ranks + max(alone, default=0)


@given(SIZES, RANKS, st.data())
def test_all_ranks_together_pass_every_trajectory_once_in_equally_many_passes(chosen, ranks, data) -> None:
    owner = owners(chosen, ranks)
    places = data.draw(st.lists(st.sampled_from(range(len(chosen))), unique=True)) if chosen else []
    made = [passes(places, chosen, owner, rank=rank, ranks=ranks, max_tokens=100) for rank in range(ranks)]

    assert len({len(one) for one in made}) == 1
    assert sorted(place for one in made for batch in one for place in batch) == sorted(places)
    for rank, one in enumerate(made):
        assert all(owner[place] == rank for batch in one for place in batch)
        assert all(num_tokens(chosen[place] for place in batch) <= 100 for batch in one)


def test_what_nobody_owns_goes_through_no_model() -> None:
    assert passes([0, 1], sizes(3, 4), [-1, 0], rank=0, ranks=1, max_tokens=10) == [[1]]
