"""Every trajectory is trained by one rank, loads are alike, and all ranks make equally many passes."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.trainer.assignment import owners, passes

LENGTHS = st.lists(st.integers(1, 100), max_size=40)


def test_the_longest_go_first_to_whoever_has_least() -> None:
    assert owners([5, 9, 1, 7, 2], size=2) == [1, 0, 0, 1, 0]  # 9 | 7, then 5 to the second, 2 and 1 to the first


@given(LENGTHS, st.integers(1, 5))
def test_no_rank_has_more_than_its_share_and_one_trajectory(lengths, size) -> None:
    owner = owners(lengths, size)
    loads = [sum(length for length, rank in zip(lengths, owner, strict=True) if rank == r) for r in range(size)]

    assert max(loads, default=0) <= sum(lengths) / size + max(lengths, default=0)


@given(LENGTHS, st.integers(1, 5), st.data())
def test_all_ranks_together_pass_every_trajectory_once_in_equally_many_passes(lengths, size, data) -> None:
    owner = owners(lengths, size)
    chosen = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True)) if lengths else []
    made = [passes(chosen, lengths, owner, rank=rank, size=size, max_tokens=100) for rank in range(size)]

    assert len({len(one) for one in made}) == 1
    assert sorted(place for one in made for batch in one for place in batch) == sorted(chosen)
    for rank, one in enumerate(made):
        assert all(owner[place] == rank for batch in one for place in batch)
        assert all(sum(lengths[place] for place in batch) <= 100 for batch in one)


def test_what_nobody_owns_goes_through_no_model() -> None:
    assert passes([0, 1], [3, 4], [-1, 0], rank=0, size=1, max_tokens=10) == [[1]]
