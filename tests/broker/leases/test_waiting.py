"""The oldest group is first, whenever it was queued."""

from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.leases.waiting import WaitingGroups
from asyncrl.messages.trajectory import Prompt


def a_group(group_id: int) -> Group:
    return Group(group_id, Prompt(text="?"), 2, min_version=0)


def lease(group: Group) -> Group:
    for slot in group.slots:
        slot.state = State.LEASED
    return group


def test_lost_trajectories_come_before_fresh_groups_and_the_oldest_first() -> None:
    waiting = WaitingGroups(map(a_group, (5, 6)))
    waiting.add(a_group(3))
    waiting.add(a_group(1))

    order = []
    while group := waiting.first():
        order.append(lease(group).group_id)

    assert order == [1, 3, 5, 6]


def test_a_group_is_there_once_however_often_it_is_added() -> None:
    group = a_group(1)
    waiting = WaitingGroups([group, group])
    waiting.add(group)

    assert len(waiting) == 1
    lease(group)
    assert (waiting.first(), len(waiting)) == (None, 0)


def test_a_group_whose_lost_trajectories_arrived_after_all_is_passed_over() -> None:
    late, fresh = lease(a_group(1)), a_group(2)
    late.slots[0].state = State.MISSING
    waiting = WaitingGroups([late, fresh])

    late.slots[0].state = State.STORED

    assert waiting.first() is fresh


def test_a_discarded_group_is_gone_and_may_come_again() -> None:
    group = a_group(1)
    waiting = WaitingGroups([group])

    waiting.discard(1)
    assert waiting.first() is None
    waiting.add(group)
    waiting.discard(1)
    waiting.add(group)
    assert waiting.first() is group
