"""Interleaving: no prefix is off by a whole position, and the file is a function of the position alone."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data.interleave import Interleave

ratios = st.lists(st.integers(1, 60), min_size=1, max_size=6)


def test_three_to_one_is_three_positions_and_one() -> None:
    assert [Interleave([3, 1]).at(position) for position in range(8)] == [
        (0, 0), (0, 1), (0, 2), (1, 0),
        (0, 3), (0, 4), (0, 5), (1, 1),
    ]  # fmt: skip


def test_two_three_five_is_spread_evenly() -> None:
    """
    By hand: of the files behind their share, the one that would be behind by a whole position soonest.

    Positions by which each file is due again: file 0 at 5 and 10, file 1 at 3⅓, 6⅔ and 10, file 2 at 2, 4, 6, 8, 10.
    """
    assert [Interleave([2, 3, 5]).at(position)[0] for position in range(10)] == [2, 1, 2, 0, 2, 1, 2, 0, 1, 2]


def test_only_the_proportion_matters() -> None:
    once, tenfold = Interleave([2, 3]), Interleave([20, 30])
    assert [once.at(position) for position in range(100)] == [tenfold.at(position) for position in range(100)]


@given(ratios)
def test_in_every_prefix_each_share_is_within_one_of_its_ratio(ratios: list[int]) -> None:
    interleave, total, counts = Interleave(ratios), sum(ratios), [0] * len(ratios)
    for position in range(2 * total + 3):
        file, before = interleave.at(position)
        assert before == counts[file]
        counts[file] += 1
        assert all(abs(counts[i] * total - (position + 1) * ratio) < total for i, ratio in enumerate(ratios))


@given(ratios, st.integers(0, 10**12))
def test_any_position_can_be_computed_by_itself(ratios: list[int], cycles: int) -> None:
    """A cursor far into a run costs what the first one does, and is as exact."""
    interleave, total = Interleave(ratios), sum(ratios)
    file, before = interleave.at(1)
    assert interleave.at(cycles * total + 1)[0] == file
    assert interleave.at(cycles * total + 1)[1] >= before + cycles
