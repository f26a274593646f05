"""`Occupancy` divides the time of a role among its activities."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.wire.occupancy import Occupancy

Doing = Literal["swapping", "sampling"]
ACTIVITIES: tuple[Doing, ...] = ("swapping", "sampling")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_time_with_an_active_task_is_its_activitys_and_the_rest_is_idle() -> None:
    clock = Clock()
    occupancy = Occupancy[Doing](ACTIVITIES, clock)
    for now_s, change in [(2.0, occupancy.begin), (3.0, occupancy.begin), (5.0, occupancy.end), (9.0, occupancy.end)]:
        clock.now_s = now_s
        change("sampling")
    clock.now_s = 10.0

    assert occupancy.seconds == {"sampling": 9.0 - 2.0, "idle": 2.0 + 1.0}


def test_of_two_activities_at_a_time_the_first_counts() -> None:
    clock = Clock()
    occupancy = Occupancy[Doing](ACTIVITIES, clock)
    with occupancy.doing("sampling"):
        clock.now_s = 3.0
        occupancy.mark("swapping", is_active=True)
        clock.now_s = 4.0
        assert occupancy.current == "swapping"
        occupancy.mark("swapping", is_active=False)
        clock.now_s = 6.0

    assert occupancy.seconds == {"idle": 0.0, "sampling": 3.0 + 2.0, "swapping": 1.0}


@given(st.lists(st.tuples(st.integers(0, 10), st.booleans(), st.sampled_from(ACTIVITIES))))
def test_seconds_add_up_to_the_time_since_the_start(changes: list[tuple[int, bool, Doing]]) -> None:
    clock = Clock()
    occupancy = Occupancy[Doing](ACTIVITIES, clock)
    for passed_s, begins, activity in changes:
        clock.now_s += passed_s
        if begins:
            occupancy.begin(activity)
        elif occupancy.num_active(activity):
            occupancy.end(activity)

        assert sum(occupancy.seconds.values()) == clock.now_s
