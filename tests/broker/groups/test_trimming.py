"""Each spool keeps the segments with payloads that are still needed, by its own numbers."""

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.trimming import first_needed
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Prompt, TrajectorySummary

SUMMARY = TrajectorySummary(8, 4, 0, 0, 1, "stop")


def stored(*places: tuple[str, int]) -> Group:
    """A group with a trajectory at each place: spool and segment."""
    group = Group(0, Prompt(), len(places), min_version=0)
    for slot, (spool, segment) in zip(group.slots, places, strict=True):
        slot.store(SpoolRef(spool, segment, 16, 8, 0), SUMMARY)
    return group


def test_the_oldest_needed_segment_of_each_spool_stays() -> None:
    done = [stored(("a", 1), ("b", 40))]
    needed = [stored(("a", 3), ("b", 41)), stored(("a", 2), ("b", 42))]
    assert first_needed(done, needed) == {"a": 2, "b": 41}


def test_a_spool_without_needed_payloads_keeps_its_newest_segment_of_those_done() -> None:
    assert first_needed([stored(("a", 1), ("a", 5))], [stored(("b", 7))]) == {"a": 5, "b": 7}


def test_trajectories_without_a_stored_part_need_nothing() -> None:
    assert first_needed([], [Group(0, Prompt(), 2, min_version=0)]) == {}
