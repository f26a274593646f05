"""Every stored trajectory gets to a reward node, and one that was lost goes first."""

import pytest

from asyncrl.broker.grading import GradeBook
from asyncrl.broker.groups import Slot
from asyncrl.messages import Unit


@pytest.fixture
def slots() -> list[Slot]:
    return [Slot(Unit(group_id, index)) for group_id in (0, 1) for index in (0, 1)]


@pytest.fixture
def book(slots: list[Slot]) -> GradeBook:
    book = GradeBook()
    for slot in slots:
        book.add(slot)
    return book


def test_the_one_that_waits_longest_is_judged_first_and_settles_once(book: GradeBook, slots: list[Slot]) -> None:
    assert book.assign("r") is slots[0]
    assert (len(book), book.num_waiting) == (4, 3)

    assert book.settle(Unit(0, 0)) is slots[0]
    assert book.settle(Unit(0, 0)) is None
    assert len(book) == 3


def test_what_a_lost_node_had_in_hand_is_judged_next_in_its_old_order(book: GradeBook, slots: list[Slot]) -> None:
    book.assign("lost")
    book.assign("other")
    book.assign("lost")

    book.revoke("lost")

    assert [book.assign("r") for _ in range(3)] == [slots[0], slots[2], slots[3]]


def test_nothing_of_a_dropped_group_waits_or_is_in_hand(book: GradeBook, slots: list[Slot]) -> None:
    book.assign("r")
    held_out = Slot(Unit(0, 0, "held_out"))
    book.add(held_out)

    book.drop(0, "train")

    assert book.settle(Unit(0, 0)) is None
    assert [book.assign("r") for _ in range(3)] == [slots[2], slots[3], held_out]
