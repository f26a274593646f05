"""Spans of one group, from what happens to it."""

import pytest

from asyncrl.broker.ledger.records import FailedAttempt, Reissued
from asyncrl.broker.traces.group_life import MAX_EVENTS, GroupLife
from asyncrl.broker.traces.ids import TraceIds
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.observe.traces.span import Span

SUMMARY = TrajectorySummary(24, 8, 3, 4, 2, "stop", num_turns=2, environment_s=0.5)
UNIT = Unit(7, 0)


@pytest.fixture
def ended() -> list[Span]:
    return []


@pytest.fixture
def life(ended: list[Span]) -> GroupLife:
    return GroupLife(7, TraceIds("run-1", 1), 10.0, ended, row=3)


def stages(ended: list[Span]) -> list[tuple[str, float, float, str]]:
    return [(span.name, span.start_s, span.end_s, span.error) for span in ended]


def test_a_life_without_faults_is_told_from_admission_to_live_weights(life, ended):
    life.leased(0, 1, "rollout-0", 11.0)
    life.stored(0, 1, SUMMARY, 14.0)
    life.assigned(0, "reward-0", 15.0)
    life.rewarded(0, 0.5, 16.0)
    life.taken(2, 18.0)
    life.stepped(2, 20.0)
    life.live(5, 21.0)
    assert stages(ended) == [
        ("waiting", 10.0, 11.0, ""),
        ("generating", 11.0, 14.0, ""),
        ("grading", 14.0, 16.0, ""),
        ("trajectory", 10.0, 16.0, ""),
        ("waiting for the trainer", 16.0, 18.0, ""),
        ("training", 18.0, 20.0, ""),
        ("publishing", 20.0, 21.0, ""),
        ("group", 10.0, 21.0, ""),
    ]
    spans = {span.name: span for span in ended}
    generating = {"node": "rollout-0", "lease_id": 1, "tokens": 24, "oldest_version": 3, "newest_version": 4}
    assert spans["generating"].attributes == generating | {
        "finish_reason": "stop",
        "turns": 2,
        "environment_seconds": 0.5,
    }
    assert spans["grading"].attributes == {"node": "reward-0", "reward": 0.5}
    root = {"group_id": 7, "row": 3, "step": 2, "outcome": "trained", "restarts": 0}
    assert spans["group"].attributes == root
    parents = {name: spans[name].parent_id for name in spans}
    assert parents["generating"] == spans["trajectory"].span_id
    assert parents["trajectory"] == parents["training"] == spans["group"].span_id
    assert parents["group"] == 0


def test_a_trajectory_that_is_leased_at_once_has_not_waited(life, ended):
    life.leased(0, 1, "rollout-0", 10.0)
    life.stored(0, 1, SUMMARY, 14.0)
    assert stages(ended) == [("generating", 10.0, 14.0, "")]


def test_a_lost_lease_ends_with_its_cause_and_the_next_wait_says_why(life, ended):
    life.leased(0, 1, "rollout-0", 10.0)
    life.progressed(0, 9, 11.0)
    life.reissued(Reissued(UNIT, 1, "node_lost", 9), 12.0)
    life.leased(0, 2, "rollout-1", 13.0)
    assert stages(ended) == [
        ("generating", 10.0, 12.0, "the lease ended: node_lost"),
        ("waiting", 12.0, 13.0, ""),
    ]
    assert [(event.name, event.at_s, event.attributes) for span in ended for event in span.events] == [
        ("progress stored", 11.0, {"tokens": 9}),
        ("reissued", 12.0, {"cause": "node_lost", "tokens": 9}),
    ]


def test_an_episode_that_starts_over_goes_on_under_its_lease(life, ended):
    life.leased(0, 1, "rollout-0", 10.0)
    life.reissued(Reissued(UNIT, 1, "environment_lost", 9), 12.0)
    life.stored(0, 1, SUMMARY, 14.0)
    assert stages(ended) == [("generating", 10.0, 14.0, "")]
    assert [event.attributes["cause"] for event in ended[0].events] == ["environment_lost"]


@pytest.mark.parametrize(
    ("stage", "failed", "next_one"),
    [
        ("rollout", "generating", "waiting"),
        ("environment", "generating", "waiting"),
        ("reward", "grading", "grading"),
        ("payload", "grading", "waiting"),
    ],
)
def test_a_failed_attempt_ends_with_its_reason_and_another_begins(life, ended, stage, failed, next_one):
    life.leased(0, 1, "rollout-0", 10.0)
    if failed == "grading":
        life.stored(0, 1, SUMMARY, 11.0)
    life.failed(FailedAttempt(UNIT, stage, "it broke", 1, False), 12.0)
    life.over("dropped", "enough", 13.0)
    assert [(span.name, span.end_s) for span in ended if span.error == "it broke"] == [(failed, 12.0)]
    assert [(span.name, span.error) for span in ended if span.start_s == 12.0] == [(next_one, "the group ended")]
    root = ended[-1]
    assert (root.name, root.error, root.attributes["outcome"]) == ("group", "enough", "dropped")


def test_the_last_failed_attempt_ends_the_trajectory(life, ended):
    life.leased(0, 1, "rollout-0", 10.0)
    life.failed(FailedAttempt(UNIT, "rollout", "out of memory", 3, True), 12.0)
    assert stages(ended) == [
        ("generating", 10.0, 12.0, "out of memory"),
        ("trajectory", 10.0, 12.0, "out of memory"),
    ]


def test_a_restarted_group_keeps_its_trace_and_samples_every_trajectory_again(life, ended):
    life.leased(0, 1, "rollout-0", 10.0)
    life.stored(0, 1, SUMMARY, 11.0)
    life.rewarded(0, 1.0, 12.0)
    life.leased(1, 2, "rollout-0", 12.0)
    life.restarted(9, 24, 13.0)
    life.leased(0, 3, "rollout-1", 15.0)
    life.over("open", "", 16.0)
    trajectories = [span for span in ended if span.name == "trajectory"]
    assert [(span.attributes["index"], span.start_s, span.end_s, span.error) for span in trajectories] == [
        (0, 10.0, 12.0, ""),
        (1, 10.0, 13.0, "the group was restarted"),
        (0, 13.0, 16.0, ""),
    ]
    assert len({span.trace_id for span in ended}) == 1
    root = ended[-1]
    assert [(event.name, event.attributes) for event in root.events] == [
        ("restarted", {"policy_version": 9, "tokens": 24})
    ]
    assert (root.attributes["restarts"], root.error) == (1, "")


def test_a_result_of_a_lease_that_an_earlier_broker_granted_was_generating_all_the_time(life, ended):
    life.stored(0, 1, SUMMARY, 14.0)
    assert stages(ended) == [("generating", 10.0, 14.0, "")]
    assert ended[0].attributes["node"] == "unknown"


def test_the_first_result_counts_and_names_the_rollout_of_its_lease(life, ended):
    life.leased(0, 1, "slow", 10.0)
    life.reissued(Reissued(UNIT, 1, "silent"), 11.0)
    life.leased(0, 2, "quick", 12.0)
    life.stored(0, 1, SUMMARY, 13.0)
    assert (ended[-1].name, ended[-1].attributes["node"], ended[-1].attributes["lease_id"]) == ("generating", "slow", 1)


def test_a_group_that_the_trainer_leaves_out_ends_with_the_reason(life, ended):
    life.taken(0, 11.0)
    life.stepped(0, 12.0)
    life.failed(FailedAttempt(Unit(7, 1), "trainer", "a log-prob is nan", 1, True), 12.0)
    life.over("untrained", "a log-prob is nan", 12.0)
    root = ended[-1]
    assert (root.name, root.error, root.attributes["outcome"]) == ("group", "a log-prob is nan", "untrained")
    assert [event.attributes for event in root.events] == [{"index": 1, "reason": "a log-prob is nan"}]


def test_a_step_that_is_repeated_is_told_once(life, ended):
    life.taken(0, 11.0)
    life.stepped(0, 12.0)
    life.stepped(0, 13.0)
    assert [span.name for span in ended] == ["waiting for the trainer", "training"]


def test_a_long_episode_keeps_a_bounded_number_of_events(life, ended):
    life.leased(0, 1, "rollout-0", 10.0)
    for turn in range(10 * MAX_EVENTS):
        life.progressed(0, turn, 11.0)
    life.stored(0, 1, SUMMARY, 12.0)
    assert len(ended[0].events) == MAX_EVENTS


def test_a_step_that_was_done_under_an_earlier_broker_is_publishing(life, ended):
    life.trains(2, 10.0)
    life.live(5, 12.0)
    assert stages(ended) == [("publishing", 10.0, 12.0, ""), ("group", 10.0, 12.0, "")]
    assert ended[0].attributes == {"step": 2, "policy_version": 5}
