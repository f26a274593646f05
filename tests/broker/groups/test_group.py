"""A group knows what it still lacks."""

import gc

import pytest

from asyncrl.broker.groups.group import Group, State
from asyncrl.messages import Prompt, ScoredTrajectory, SpoolRef, TrajectorySummary, Unit

REF = SpoolRef("spool", 0, 0, 8, 0)


def test_indices_are_told_apart_by_state_and_the_group_is_complete_with_the_last_verdict() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)
    group.slots[1].state = State.LEASED

    assert group.indices(State.MISSING) == [0, 2]
    assert not group.is_complete
    group.num_scored = 3
    assert group.is_complete


def test_lengths_are_those_of_what_is_stored() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)
    group.slots[2].summary = TrajectorySummary(9, 4, 2, 2, 1, "stop")

    assert group.lengths == [9]


def test_only_a_stored_trajectory_is_a_sample() -> None:
    slot = Group(7, Prompt(text="?"), 1, min_version=0).slots[0]
    with pytest.raises(ValueError, match="not stored"):
        slot.sample()

    slot.ref, slot.summary, slot.reward = REF, TrajectorySummary(9, 4, 2, 2, 1, "stop"), 0.5

    assert slot.sample() == ScoredTrajectory(Unit(7, 0), REF, 0.5, {}, slot.summary)


def test_the_collector_has_nothing_to_look_at_in_a_group() -> None:
    group = Group(7, Prompt(text="?"), 3, min_version=2)

    gc.collect()

    assert not any(map(gc.is_tracked, (group, group.slots, *group.slots, group.slots[0].unit)))
