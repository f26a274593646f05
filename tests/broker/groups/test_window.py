"""At most floor((1 + S) P T) groups are open, and none retires before the weights it contributed to are live."""

import pytest

from asyncrl.broker.groups.window import Window
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import BrokenInvariant


@pytest.mark.parametrize(
    ("groups", "publish", "staleness", "size"),
    [
        pytest.param(16, 1, 0.0, 16, id="synchronous: one batch"),
        pytest.param(16, 1, 1.0, 32, id="one step off: two batches"),
        pytest.param(4, 3, 0.5, 18, id="a publish is 12 groups, and half of one more"),
        pytest.param(3, 1, 0.5, 4, id="4.5 groups are 4"),
        pytest.param(10, 1, 0.1, 11, id="11 although 1.1 * 10 is a little less in binary"),
    ],
)
def test_the_window_is_the_floor_of_one_plus_staleness_publishes(
    groups: int, publish: int, staleness: float, size: int
) -> None:
    assert Schedule(groups_per_step=groups, steps_per_publish=publish, staleness=staleness).window == size


def test_admitting_past_the_bound_raises() -> None:
    window = Window(2)
    window.admit(0)
    window.admit(1)

    with pytest.raises(BrokenInvariant, match="group 2 admitted with 2 of 2 groups open"):
        window.admit(2)


def test_a_consumed_group_stays_open_until_its_weights_are_live() -> None:
    window = Window(4)
    for group_id in range(4):
        window.admit(group_id)
    window.consume(0, [0, 1])
    window.consume(1, [2, 3])
    assert window.room == 0
    assert window.consumed == {0: [0, 1], 1: [2, 3]}

    window.live(next_step=1)
    assert window.consumed == {1: [2, 3]}
    assert (window.room, window.num_retired) == (2, 2)

    window.live(next_step=2)
    assert (window.room, window.num_retired) == (4, 4)


def test_a_version_made_of_many_steps_frees_all_of_them() -> None:
    window = Window(3)
    for group_id in range(3):
        window.admit(group_id)
        window.consume(group_id, [group_id])

    window.live(next_step=3)

    assert window.num_open == 0


def test_a_dropped_group_leaves_at_once_and_only_once() -> None:
    window = Window(1)
    window.admit(0)
    window.drop(0)

    window.admit(1)
    assert (window.num_admitted, window.num_open, window.peak) == (2, 1, 1)
    with pytest.raises(BrokenInvariant, match="group 0 retired twice"):
        window.drop(0)


@pytest.mark.parametrize(("step", "group_ids"), [(1, [7]), (0, [1])], ids=["not open", "a step twice"])
def test_what_was_never_opened_and_what_was_consumed_cannot_be_consumed(step: int, group_ids: list[int]) -> None:
    window = Window(2)
    window.admit(0)
    window.admit(1)
    window.consume(0, [0])

    with pytest.raises(BrokenInvariant, match=f"step {step}"):
        window.consume(step, group_ids)


def test_a_window_that_grows_has_room_at_once_and_one_that_shrinks_once_it_has_emptied() -> None:
    window = Window(2)
    for group_id in range(2):
        window.admit(group_id)
    window.resize(3)
    assert window.room == 1
    window.admit(2)
    window.resize(1)
    assert window.room == -2
    with pytest.raises(BrokenInvariant, match="3 of 1 groups open"):
        window.admit(3)
    for group_id in range(3):
        window.drop(group_id)
    assert window.room == 1
