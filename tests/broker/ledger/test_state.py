"""State of a run after its records, computed by hand, and the versions that its steps train."""

from collections import Counter
from typing import Literal

import pytest

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    FailedAttempt,
    LeftOut,
    Measured,
    Progressed,
    Refused,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.ledger.state import LedgerState, OpenGroups, PromisedBounds, TrainedVersions, most_versions
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

SUMMARY = TrajectorySummary(3, 5, 0, 0, 1, "stop")


def of(*records: AnyRecord, num_greedy: int = 0) -> LedgerState:
    state = LedgerState(Schedule(groups_per_step=1, group_size=1), num_greedy)
    for record in records:
        state.add(record)
    return state


def group(group_id: int, index: int = 0) -> list[AnyRecord]:
    unit = Unit(group_id, index)
    return [
        Admitted(group_id, 0, 0, 0),
        Result(unit, 1, SpoolRef("s", group_id, 0, 1, 0), SUMMARY),
        Rewarded(unit, 1.0),
    ]


def test_greedy_trajectories_are_in_the_batch_but_not_trained_on() -> None:
    state = of(*group(0), *group(0, index=1)[1:], Taken(0, [0]), num_greedy=1)
    assert [item.result.unit.index for item in state.batch(0)] == [0, 1]
    assert [item.result.unit.index for item in state.sampled(0)] == [0]


def test_a_restart_voids_what_was_sampled() -> None:
    state = of(*group(0), Restarted(0, 1, [3]))
    assert (state.results, state.rewards) == ({}, {})
    assert (state.min_versions[0], state.restarts[0]) == (1, 1)


def test_a_prefix_is_kept_until_its_result_or_a_failed_generation() -> None:
    prefix = Progressed(Unit(0, 0), 1, SpoolRef("s", 0, 0, 1, 0), SUMMARY)
    assert of(prefix).progress == {Unit(0, 0): prefix}
    assert of(prefix, *group(0)).progress == {}
    assert of(prefix, FailedAttempt(Unit(0, 0), "rollout", "out of memory", 1, False)).progress == {}
    assert of(prefix, FailedAttempt(Unit(0, 0), "environment", "KeyError", 1, False)).progress == {}


def test_a_prefix_is_kept_if_only_its_lease_ended_and_not_if_its_episode_began_anew() -> None:
    prefix = Progressed(Unit(0, 0), 1, SpoolRef("s", 0, 0, 1, 0), SUMMARY)
    assert of(prefix, Reissued(Unit(0, 0), 1, "node_lost")).progress == {Unit(0, 0): prefix}
    assert of(prefix, Reissued(Unit(0, 0), 1, "environment_lost")).progress == {}


def test_payloads_are_needed_until_two_checkpoints_contain_their_step() -> None:
    records = [record for group_id in range(5) for record in group(group_id)]
    records += [Taken(0, [0]), Taken(1, [1]), Taken(2, [2]), Dropped(3, "late", 3)]
    assert {record.unit.group_id for record in of(*records).needed()} == {0, 1, 2, 4}
    once = of(*records, Committed(0, "step_000001"))
    assert {record.unit.group_id for record in once.needed()} == {0, 1, 2, 4}
    twice = of(*records, Committed(0, "step_000001"), Committed(1, "step_000002"))
    assert {record.unit.group_id for record in twice.needed()} == {1, 2, 4}
    assert (twice.committed_step, twice.first_needed_step, twice.next_step) == (1, 1, 3)


def test_the_mean_correct_of_a_complete_group_outlasts_what_voids_its_rewards() -> None:
    wrong = Rewarded(Unit(0, 1), 1.0, {"correct": 0.0})
    state = LedgerState(Schedule(groups_per_step=1, group_size=2))
    for record in (Admitted(0, 0, 0, 0), Rewarded(Unit(0, 0), 1.0), wrong, wrong):
        state.add(record)
    assert state.correct == {0: 0.5}
    state.add(Restarted(0, 1, [3, 3]))
    state.add(Rewarded(Unit(0, 0), 0.0))
    assert state.correct == {0: 0.5}, "incomplete again"
    state.add(Rewarded(Unit(0, 1), 0.0))
    assert state.correct == {0: 0.5}, "a prompt that is retired stays so"


def test_held_out_prompts_are_never_retired() -> None:
    state = of(Rewarded(Unit(0, 0, "held_out"), 1.0))
    assert state.correct == {}


# ── counts ────────────────────────────────────────────────────────────────────────────────────


def admitted(group_id: int) -> Admitted:
    return Admitted(group_id, epoch=0, row=group_id, policy_version=0)


def result(group_id: int, index: int, oldest_version: int = 0, num_tokens: int = 10) -> Result:
    summary = TrajectorySummary(num_tokens, 5, oldest_version, 9, 1, "stop")
    return Result(Unit(group_id, index), 1, SpoolRef("s", 0, 0, 1, 0), summary)


def pairs(*records: AnyRecord, steps_per_publish: int = 1) -> LedgerState:
    state = LedgerState(Schedule(groups_per_step=1, group_size=2, steps_per_publish=steps_per_publish))
    for record in records:
        state.add(record)
    return state


def test_staleness_is_counted_from_the_version_that_the_step_trained() -> None:
    trained: list[AnyRecord] = [result(0, 0), result(0, 1, 1), result(1, 0), result(1, 1), Taken(1, [1]), Taken(2, [0])]
    assert pairs(*trained, steps_per_publish=2).staleness() == Counter({0: 3, 1: 1})
    assert pairs(*trained, steps_per_publish=1).staleness() == Counter({1: 3, 2: 1})


def test_a_restart_counts_the_results_and_rewards_that_it_voids() -> None:
    before: list[AnyRecord] = [
        admitted(0),
        result(0, 0),
        result(0, 1),
        Rewarded(Unit(0, 0), 1.0),
        Restarted(0, 1, [10, 20]),
    ]
    state = pairs(*before, result(0, 0, 1), Rewarded(Unit(0, 0), 0.0))
    assert (state.results, state.extra_results) == ({Unit(0, 0): result(0, 0, 1)}, {})
    assert (state.rewards, state.extra_rewards) == ({Unit(0, 0): Rewarded(Unit(0, 0), 0.0)}, {})
    assert [summary.oldest_version for summary in state.summaries(0)] == [1]
    assert (state.restarts, state.discarded.restarted_lengths) == ({0: 1}, [10, 20])
    assert (state.discarded.num_rewards, state.discarded.num_tokens["restarted"]) == (1, 30)
    assert state.open.peak == 1, "it was open all the time"


def test_a_group_that_has_ended_is_voided_by_no_restart() -> None:
    ends: list[AnyRecord] = [Taken(0, [0]), Dropped(0, "late", 0)]
    for end in ends:
        state = pairs(admitted(0), result(0, 0), Rewarded(Unit(0, 0), 1.0), end, Restarted(0, 1, []))
        assert (state.results, state.discarded.num_rewards) == ({Unit(0, 0): result(0, 0)}, 0)


def test_the_length_of_a_void_result_counts_and_nothing_else_of_it() -> None:
    damages: list[AnyRecord] = [FailedAttempt(Unit(0, 0), "payload", "NaN", 3, True), Untrained(0, 0, "NaN", 30)]
    for void in damages:
        state = pairs(admitted(0), result(0, 0), Taken(0, [0]), void)
        assert [summary.num_tokens for summary in state.summaries(0)] == [10]
        assert (state.result(Unit(0, 0)), state.batch(0), [*state.stored()], [*state.needed()]) == (None, [], [], [])


def test_a_refused_result_makes_room_for_another_and_one_left_out_does_not() -> None:
    refused = pairs(admitted(0), result(0, 0), Refused(Unit(0, 0), 9, "NaN", 10), result(0, 0, num_tokens=7))
    assert (refused.results, refused.extra_results) == ({Unit(0, 0): result(0, 0, num_tokens=7)}, {})
    left_out = pairs(admitted(0), result(0, 0), LeftOut(Unit(0, 0), "reward: hung", 10))
    assert (left_out.results, left_out.units(0), left_out.discarded.left_out) == ({}, [Unit(0, 1)], {"reward: hung": 1})


def test_a_second_record_of_one_thing_is_counted_and_changes_nothing() -> None:
    first: list[AnyRecord] = [admitted(0), result(0, 0), Rewarded(Unit(0, 0), 1.0)]
    state = pairs(*first, result(0, 0, 5), Rewarded(Unit(0, 0), 0.0))
    assert (state.results[Unit(0, 0)], state.extra_results) == (result(0, 0), {Unit(0, 0): 1})
    assert (state.rewards[Unit(0, 0)].reward, state.extra_rewards) == (1.0, {Unit(0, 0): 1})
    state.add(admitted(0))
    assert state.extra_admissions == {0: 1}


def test_a_second_verdict_of_a_trajectory_that_was_refused_after_its_reward_is_counted() -> None:
    judged: list[AnyRecord] = [result(0, 0), Rewarded(Unit(0, 0), 1.0)]
    state = pairs(admitted(0), *judged, Refused(Unit(0, 0), 9, "NaN", 10), *judged)
    assert (state.extra_results, state.extra_rewards) == ({}, {Unit(0, 0): 1})


def test_an_evaluation_is_kept_and_changes_nothing_else() -> None:
    state = pairs(Measured(0, 0.5, 8))
    assert state.measured == [Measured(0, 0.5, 8)]
    assert not any((state.admitted, state.results, state.batches, state.commits, len(state.open)))


# ── open groups ───────────────────────────────────────────────────────────────────────────────


def test_a_dropped_group_is_no_longer_open() -> None:
    assert of(admitted(0), Dropped(0, "failed", 0), admitted(1)).open.peak == 1


def test_a_taken_group_is_open_until_the_weights_it_made_are_live() -> None:
    assert of(admitted(0), Taken(0, [0]), VersionLive(0, 0), admitted(1)).open.peak == 2
    assert of(admitted(0), Taken(0, [0]), VersionLive(1, 1), admitted(1)).open.peak == 1


def test_a_version_that_goes_live_again_retires_nothing_twice() -> None:
    again = VersionLive(1, 1)
    assert of(admitted(0), Taken(0, [0]), again, again, admitted(1), admitted(2)).open.peak == 2


def test_groups_close_step_by_step() -> None:
    groups = OpenGroups([0], {3: [1, 2], 4: [5]})
    assert (len(groups), groups.of_step(3), groups.of_step(9)) == (4, [1, 2], [])
    groups.taken(5, [0])
    assert groups.live(5) == [1, 2, 5]
    assert (0 in groups, 1 in groups, groups.of_step(3)) == (True, False, [])


# ── versions ───────────────────────────────────────────────────────────────────────────────────
# Versions by step, versions that cannot be, and the staleness that each schedule promises.


# ── versions ──────────────────────────────────────────────────────────────────────────────────


def trained_versions_of(steps_per_publish: int, *live: tuple[int, int]) -> TrainedVersions:
    """Versions that went live, each with the number of its steps."""
    versions = TrainedVersions(steps_per_publish)
    for version, next_step in live:
        record = VersionLive(version, next_step)
        assert versions.problem(record) == ""
        versions.add(record)
    return versions


def test_a_version_is_made_after_every_t_th_step() -> None:
    versions = trained_versions_of(2, (0, 0), (1, 2), (2, 4))
    assert [versions.of_step(step) for step in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    assert versions.live_version == 2


def test_a_version_that_never_went_live_is_counted() -> None:
    assert [trained_versions_of(1, (0, 0), (3, 3)).of_step(step) for step in range(5)] == [0, 1, 2, 3, 4]


def test_the_last_version_of_a_run_that_was_extended_shifts_the_later_ones() -> None:
    versions = trained_versions_of(2, (0, 0), (1, 2), (2, 4), (3, 5), (4, 6))
    assert [versions.of_step(step) for step in range(9)] == [0, 0, 1, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("version", "next_step", "problem"),
    [
        (2, 4, "version 2 went live after version 2: expected a newer one"),
        (3, 2, "version 3 contains 2 steps, but the version before contains 4"),
        (99, 6, "version 99 contains 6 steps: expected version 3"),
        (3, 8, "version 3 contains 8 steps: expected version 4"),
    ],
)
def test_an_impossible_version_is_named_and_ignored(version: int, next_step: int, problem: str) -> None:
    versions = trained_versions_of(2, (0, 0), (2, 4))
    record = VersionLive(version, next_step)
    assert versions.problem(record) == problem
    versions.add(record)
    assert versions.of_step(6) == 3


# ── staleness bounds ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("staleness", "steps_per_publish", "bound"),
    [(0, 1, 0), (1, 1, 1), (1, 2, 1), (1.5, 1, 2), (1.5, 2, 2), (0.01, 1, 0), (3, 2, 3)],
)
def test_fifo_promises_the_staleness_rounded_up_to_the_versions_that_the_window_holds(
    staleness: float, steps_per_publish: int, bound: int
) -> None:
    schedule = Schedule(groups_per_step=4, staleness=staleness, steps_per_publish=steps_per_publish)
    assert most_versions(schedule) == bound


@pytest.mark.parametrize(("order_window", "bound"), [(1, 1), (2, 2), (5, 2), (6, 3), (None, 5)])
def test_each_step_of_groups_that_may_pass_a_slow_one_adds_a_version(order_window: int | None, bound: int) -> None:
    schedule = Schedule(groups_per_step=4, staleness=1, order="windowed", order_window=order_window)
    assert most_versions(schedule) == bound


@pytest.mark.parametrize(("staleness", "reach"), [(0, 8), (1, 16), (1.5, 25), (2, 36), (3, 64)])
def test_more_groups_may_pass_a_slow_one_where_more_are_open(staleness: float, reach: int) -> None:
    assert Schedule(groups_per_step=4, staleness=staleness, order="windowed").reach == reach


def test_waiting_for_stragglers_leaves_as_much_room_to_pass_as_the_bound_allows() -> None:
    schedule = Schedule(groups_per_step=4, staleness=1, order="windowed", max_staleness=2)
    assert (schedule.reach, schedule.most_versions_by_order) == (5, 2)
    wider = Schedule(groups_per_step=4, staleness=1, order="windowed", order_window=6)
    assert wider.most_versions_by_order == 3


def test_completion_alone_promises_nothing() -> None:
    assert most_versions(Schedule(order="completion", staleness=1)) is None


@pytest.mark.parametrize("on_straggler", ["wait", "reissue"])
def test_max_staleness_is_kept_by_waiting_and_by_sampling_again(on_straggler: str) -> None:
    schedule = Schedule(order="completion", staleness=3, max_staleness=4, on_straggler=on_straggler)  # type: ignore[arg-type]
    assert most_versions(schedule) == 4


@pytest.mark.parametrize("on_straggler", ["train", "mask"])
def test_training_on_stragglers_leaves_the_bound_of_the_order(on_straggler: Literal["train", "mask"]) -> None:
    assert most_versions(Schedule(order="fifo", staleness=2, max_staleness=1, on_straggler=on_straggler)) == 2
    assert most_versions(Schedule(order="completion", max_staleness=1, on_straggler=on_straggler)) is None


def test_of_two_bounds_the_smaller_holds() -> None:
    assert most_versions(Schedule(order="fifo", staleness=3, max_staleness=1, on_straggler="reissue")) == 1


def test_a_group_is_promised_the_bound_of_its_admission_and_a_restarted_one_the_largest() -> None:
    bounds = PromisedBounds(Schedule(groups_per_step=2, staleness=2.0))
    bounds.admitted(0)
    bounds.changed({"schedule.staleness": 0.0, "trainer.lr": 1.0})
    bounds.admitted(1)
    assert (bounds.of(0), bounds.of(1)) == (2, 0)
    bounds.restarted(1)
    assert bounds.of(1) == 2


def test_without_a_bound_a_change_promises_none() -> None:
    bounds = PromisedBounds(Schedule(order="completion"))
    bounds.changed({"schedule.staleness": 3.0})
    bounds.admitted(0)
    bounds.restarted(0)
    assert bounds.of(0) is None
