"""`Occupancy` splits time into busy time and wait time."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actor.occupancy import Occupancy


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_time_with_an_active_call_is_busy_and_the_rest_is_wait() -> None:
    clock = Clock()
    occupancy = Occupancy(clock)
    for now_s, change in [(2.0, occupancy.begin), (3.0, occupancy.begin), (5.0, occupancy.end), (9.0, occupancy.end)]:
        clock.now_s = now_s
        change()
    clock.now_s = 10.0

    assert occupancy.busy_s == 9.0 - 2.0
    assert occupancy.wait_s == 2.0 + 1.0


@given(st.lists(st.tuples(st.integers(0, 10), st.booleans())))
def test_busy_and_wait_add_up_to_the_time_since_the_start(changes: list[tuple[int, bool]]) -> None:
    clock = Clock()
    occupancy = Occupancy(clock)
    for passed_s, begins in changes:
        clock.now_s += passed_s
        if begins:
            occupancy.begin()
        elif occupancy.active:
            occupancy.end()

        assert occupancy.busy_s + occupancy.wait_s == clock.now_s
