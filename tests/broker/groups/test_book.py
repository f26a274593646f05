"""Open groups of both splits are found by unit."""

import pytest

from asyncrl.broker.groups.book import GroupBook
from asyncrl.broker.groups.group import Group
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.messages.words import Split


def a_group(split: Split) -> Group:
    return Group(3, Prompt(text="?"), 2, min_version=0, split=split)


def test_groups_of_both_splits_may_share_an_id() -> None:
    book, train, held_out = GroupBook(), a_group("train"), a_group("held_out")
    assert not book
    book.add(train)
    book.add(held_out)

    assert book.group(Unit(3, 0)) is train
    assert book.group(Unit(3, 0, "held_out")) is held_out
    assert list(book) == [train, held_out]

    book.remove(train)

    assert (book.group(Unit(3, 0)), list(book)) == (None, [held_out])


@pytest.mark.parametrize("unit", [Unit(3, 2), Unit(3, -1), Unit(4, 0), Unit(3, 0, "held_out")])
def test_a_unit_outside_every_open_group_has_no_slot(unit: Unit) -> None:
    book, group = GroupBook(), a_group("train")
    book.add(group)

    assert book.slot(Unit(3, 1)) is group.slots[1]
    assert book.slot(unit) is None
