"""Files take turns: no prefix is unfair by a whole turn, and nothing but the number of the turn decides."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data.interleave import Interleave

ratios = st.lists(st.integers(1, 60), min_size=1, max_size=6)


def test_three_to_one_is_three_turns_and_one() -> None:
    assert [Interleave([3, 1]).at(turn) for turn in range(8)] == [
        (0, 0), (0, 1), (0, 2), (1, 0),
        (0, 3), (0, 4), (0, 5), (1, 1),
    ]  # fmt: skip


def test_two_three_five_is_spread_evenly() -> None:
    """
    By hand: of those behind their share, the one that is soonest behind by a whole turn.

    Turns in which each must have had one more: file 0 at 5 and 10, file 1 at 3⅓, 6⅔ and 10, file 2 at 2, 4, 6, 8, 10.
    """
    assert [Interleave([2, 3, 5]).at(turn)[0] for turn in range(10)] == [2, 1, 2, 0, 2, 1, 2, 0, 1, 2]


def test_only_the_proportion_matters() -> None:
    once, tenfold = Interleave([2, 3]), Interleave([20, 30])
    assert [once.at(turn) for turn in range(100)] == [tenfold.at(turn) for turn in range(100)]


@given(ratios)
def test_in_every_prefix_each_share_is_within_one_of_its_ratio(ratios: list[int]) -> None:
    turns, total, had = Interleave(ratios), sum(ratios), [0] * len(ratios)
    for turn in range(2 * total + 3):
        file, before = turns.at(turn)
        assert before == had[file], "how many it has had is what it has had"
        had[file] += 1
        assert all(abs(had[i] * total - (turn + 1) * ratio) < total for i, ratio in enumerate(ratios))


@given(ratios, st.integers(0, 10**12))
def test_any_turn_can_be_asked_for_by_itself(ratios: list[int], cycles: int) -> None:
    """A cursor far into a run costs what the first one does, and is as exact."""
    turns, total = Interleave(ratios), sum(ratios)
    file, before = turns.at(1)
    assert turns.at(cycles * total + 1)[0] == file
    assert turns.at(cycles * total + 1)[1] >= before + cycles
