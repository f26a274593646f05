import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.observe.report.axes import round_axis, thin, tight_axis

NUMBERS = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20)


@given(NUMBERS, st.booleans())
@example([5e-324], True)
def test_every_value_lies_on_a_round_axis_with_two_to_six_ticks(values: list[float], zero: bool) -> None:
    axis = round_axis(values, 220, -180, zero=zero)

    assert all(40 - 1e-6 <= axis.place(value) <= 220 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks()) <= 7
    assert math.isclose(axis.ticks()[0], axis.low, abs_tol=axis.step * 1e-6)
    assert math.isclose(axis.ticks()[-1], axis.high, abs_tol=axis.step * 1e-6)
    if zero:
        assert axis.low <= 0 <= axis.high


def test_a_round_axis_ends_on_the_next_ticks() -> None:
    axis = round_axis([0.12, 0.93], 220, -200)

    assert (axis.low, axis.high) == (0, 1)
    assert axis.ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert axis.place(0.25) == 170


def test_a_tight_axis_ends_where_the_values_do() -> None:
    axis = tight_axis([0, 59], 58, 484)

    assert (axis.low, axis.high) == (0, 59)
    assert axis.ticks() == [0, 10, 20, 30, 40, 50]


def test_no_tick_stands_between_two_steps() -> None:
    assert tight_axis([3, 5], 0, 100).ticks() == [3, 4, 5]
    assert tight_axis([3, 5], 0, 100, whole=False).step == 0.5


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [-3.0, -3.0]])
def test_equal_values_still_have_an_axis(values: list[float]) -> None:
    for axis in (tight_axis(values, 0, 100), round_axis(values, 0, 100)):
        assert axis.low < axis.high
        assert all(0 < axis.place(value) < 100 for value in values)


def test_values_that_are_all_zero_lie_at_the_bottom_of_an_axis_from_zero() -> None:
    axis = round_axis([0.0, 0.0], 220, -180, zero=True)
    assert (axis.low, axis.high, axis.place(0.0)) == (0, 1, 220)


@given(st.lists(st.floats(-1e6, 1e6), max_size=400))
def test_thinning_keeps_order_and_both_extremes(ys: list[float]) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    kept = thin(points, most=50)

    assert len(kept) <= 50
    assert kept == [point for point in points if point in set(kept)]
    if ys:
        assert min(y for _, y in kept) == min(ys)
        assert max(y for _, y in kept) == max(ys)
