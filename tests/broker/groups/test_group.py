"""States of slots, and completion of a group."""

import gc

import pytest

from asyncrl.broker.groups.group import Group, State
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit

REF = SpoolRef("spool", 0, 0, 8, 0)


def test_a_group_is_complete_with_its_last_reward() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)
    group.slots[1].state = State.LEASED

    assert group.indices(State.MISSING) == [0, 2]
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
