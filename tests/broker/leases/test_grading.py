"""Every stored trajectory is graded; those of a lost node go first."""

import pytest

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Prompt, Unit


@pytest.fixture
def slots() -> list[Slot]:
    return [Slot(Unit(group_id, index)) for group_id in (0, 1) for index in (0, 1)]


@pytest.fixture
def book(slots: list[Slot]) -> GradeBook:
    book = GradeBook()
    for slot in slots:
        book.add(slot)
    return book


def test_the_group_that_waits_longest_is_graded_first_and_each_settles_once(book: GradeBook, slots: list[Slot]) -> None:
    assert book.assign("r", 8) == slots[:2]
    assert (len(book), book.num_waiting) == (4, 2)

    assert book.settle(Unit(0, 0), "r") == 0.0
    assert book.settle(Unit(0, 0), "r") is None
    assert len(book) == 3


def test_trajectories_of_a_lost_node_are_graded_next_in_their_old_order(book: GradeBook, slots: list[Slot]) -> None:
    book.assign("lost", 1)
    book.assign("other", 1)
    book.assign("lost", 1)

    book.revoke("lost")

    assert [book.assign("r", 8) for _ in range(2)] == [[slots[0]], slots[2:]]


def test_a_node_is_assigned_no_more_than_it_takes(book: GradeBook, slots: list[Slot]) -> None:
    assert [book.assign("r", 1) for _ in range(3)] == [[slots[0]], [slots[1]], [slots[2]]]
    assert book.waiting
    assert book.assign("r", 1) == [slots[3]]
    assert (bool(book.waiting), bool(book)) == (False, True)


def test_nothing_of_a_dropped_group_is_queued_or_graded(book: GradeBook, slots: list[Slot]) -> None:
    group = Group(0, Prompt(text="?"), 2, min_version=0)
    book.assign("r", 1)
    held_out = Slot(Unit(0, 0, "held_out"))
    book.add(held_out)

    book.drop(group)

    assert book.settle(Unit(0, 0), "r") is None
    assert [book.assign("r", 8) for _ in range(2)] == [slots[2:], [held_out]]


def test_trajectories_of_a_parked_spool_wait_for_it_and_those_of_a_dropped_group_do_not() -> None:
    book = GradeBook()
    group, other = Group(0, Prompt(text="?"), 2, min_version=0), Group(1, Prompt(text="?"), 1, min_version=0)
    for slot, spool in zip((*group.slots, *other.slots), ("a", "b", "a"), strict=True):
        slot.ref = SpoolRef(spool, 0, 16, 8, 0)
        book.add(slot)

    book.park("a")
    assert (len(book), book.num_waiting) == (3, 1)
    assert book.assign("r", 8) == [group.slots[1]]
    book.add(group.slots[0])
    assert not book.waiting, "what is added later waits too"

    book.drop(group)
    book.unpark("a")
    assert book.assign("r", 8) == [other.slots[0]]
    assert len(book) == 1


def test_a_removed_trajectory_is_neither_queued_nor_graded(book: GradeBook, slots: list[Slot]) -> None:
    book.remove(slots[0])
    assert book.assign("r", 8) == [slots[1]]
    book.remove(slots[1])
    assert book.settle(slots[1].unit, "r") is None
    assert len(book) == 2
