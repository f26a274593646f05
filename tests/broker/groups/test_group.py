"""Open groups of both splits are found by unit."""

import gc

import pytest

from asyncrl.broker.groups.group import Group, GroupBook, SlotState
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
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


# ── test group ────────────────────────────────────────────────────────────────────────────────
# States of slots, and completion of a group.

REF = SpoolRef("spool", 0, 0, 8, 0)


def test_a_group_is_complete_with_its_last_reward() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)
    group.slots[1].state = SlotState.LEASED

    assert group.indices(SlotState.MISSING) == [0, 2]
    assert not group.is_complete
    group.num_scored = 3
    assert group.is_complete


def test_lengths_are_of_stored_trajectories() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)
    group.slots[2].summary = TrajectorySummary(9, 4, 2, 2, 1, "stop")

    assert group.lengths == [9]


def test_only_a_stored_trajectory_goes_into_a_batch() -> None:
    slot = Group(7, Prompt(text="?"), 1, min_version=0).slots[0]
    with pytest.raises(ValueError, match="not stored"):
        slot.scored_trajectory()

    slot.ref, slot.summary, slot.reward = REF, TrajectorySummary(9, 4, 2, 2, 1, "stop"), 0.5

    assert slot.scored_trajectory() == ScoredTrajectory(Unit(7, 0), REF, 0.5, {}, slot.summary)


def test_the_garbage_collector_tracks_nothing_in_a_group() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)

    gc.collect()

    assert not any(map(gc.is_tracked, (group, group.slots, *group.slots, group.slots[0].unit)))
