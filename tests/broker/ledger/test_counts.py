"""Counts over a ledger, computed by hand."""

from collections import Counter

from asyncrl.broker.ledger.counts import RecordCounts
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Dropped,
    Measured,
    Restarted,
    Result,
    Rewarded,
    Taken,
    VersionLive,
)
from asyncrl.broker.ledger.trained_versions import TrainedVersions
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit


def of(*records: AnyRecord) -> RecordCounts:
    counts = RecordCounts(Schedule())
    for record in records:
        counts.add(record)
    return counts


def admitted(group_id: int) -> Admitted:
    return Admitted(group_id, epoch=0, row=group_id, policy_version=0)


def result(group_id: int, index: int, oldest_version: int) -> Result:
    return Result(
        Unit(group_id, index), 1, SpoolRef("s", 0, 0, 1, 0), TrajectorySummary(10, 5, oldest_version, 9, 1, "stop")
    )


def test_a_dropped_group_is_no_longer_open():
    assert of(admitted(0), Dropped(0, "failed", 0), admitted(1)).peak_open == 1


def test_a_taken_group_is_open_until_the_weights_it_made_are_live():
    assert of(admitted(0), Taken(0, [0]), VersionLive(0, 0), admitted(1)).peak_open == 2
    assert of(admitted(0), Taken(0, [0]), VersionLive(1, 1), admitted(1)).peak_open == 1


def test_a_version_that_goes_live_again_retires_nothing_twice():
    counts = of(admitted(0), Taken(0, [0]), VersionLive(1, 1), VersionLive(1, 1), admitted(1), admitted(2))
    assert counts.peak_open == 2


def test_staleness_is_counted_from_the_version_that_the_step_trained():
    counts = of(
        result(0, 0, oldest_version=0),
        result(0, 1, oldest_version=1),
        result(1, 0, oldest_version=0),
        result(1, 1, oldest_version=0),
        Taken(1, [1]),
        Taken(2, [0]),
    )
    assert counts.staleness(2, TrainedVersions(steps_per_publish=2)) == Counter({0: 3, 1: 1})
    assert counts.staleness(2, TrainedVersions(steps_per_publish=1)) == Counter({1: 3, 2: 1})


def test_a_restart_voids_the_results_and_rewards_of_a_group():
    counts = of(
        Admitted(0, 0, 0, 0),
        result(0, 0, oldest_version=0),
        result(0, 1, oldest_version=0),
        Rewarded(Unit(0, 0), 1.0),
        Restarted(0, 1, [10, 20]),
        result(0, 0, oldest_version=1),
        Rewarded(Unit(0, 0), 0.0),
    )
    assert counts.results == {Unit(0, 0): 1}
    assert counts.rewards == {Unit(0, 0): 1}
    assert counts.num_void_rewards == 1
    assert [summary.oldest_version for summary in counts.summaries_of(0, 2)] == [1]
    assert (counts.restarts, counts.restarted_lengths) == ({0: 1}, [10, 20])
    assert counts.discarded_tokens["restarted"] == 30
    assert counts.wrong_restarts == []
    assert counts.peak_open == 1, "it was open all the time"


def test_evaluations_change_nothing():
    assert vars(of(Measured(0, 0.5, 8))) == vars(of())
