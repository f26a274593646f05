"""Spans of one group, from what happens to it."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings

from asyncrl.broker.groups.filtering import ZERO_VARIANCE
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Dropped,
    FailedAttempt,
    Reissued,
    Restarted,
    Rewarded,
    Taken,
    Untrained,
)
from asyncrl.broker.outbox import OutgoingMessage
from asyncrl.broker.traces import MAX_EVENTS, GroupLife, GroupLives, TraceIds, Traces, unix_clock
from asyncrl.config.config import Config
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import Sampling, TrajectorySummary, Unit
from asyncrl.records.spans import EVENTS, ROOT, SPANS, TraceSpan
from tests.broker.chaos import CONFIGS, LENGTHS, SEEDS, Chaos, run_to_the_end, start_all
from tests.broker.driver import a_config, a_scheduler
from tests.broker.traces.traced import TracedCluster

SUMMARY = TrajectorySummary(24, 8, 3, 4, 2, "stop", num_turns=2, environment_s=0.5)
UNIT = Unit(7, 0)


@pytest.fixture
def ended() -> list[TraceSpan]:
    return []


@pytest.fixture
def life(ended: list[TraceSpan]) -> GroupLife:
    return GroupLife(7, TraceIds("run-1", 1), 10.0, ended, row=3)


def stages(ended: list[TraceSpan]) -> list[tuple[str, float, float, str]]:
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


# ── test group lives ──────────────────────────────────────────────────────────────────────────
# Spans of a whole run, under any faults: nothing is missing, nothing is left, and all of it is in the table.


def roots(spans: list[TraceSpan]) -> dict[int, list[TraceSpan]]:
    found = defaultdict(list)
    for span in spans:
        if span.name == ROOT:
            found[int(span.attributes["group_id"])].append(span)
    return found


def check_spans(spans: list[TraceSpan]) -> None:
    """Spans are those of the table, and lie within their parents."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        kind = SPANS[span.name]
        assert span.attributes.keys() <= set(kind.attributes), span
        assert span.start_s <= span.end_s
        for event in span.events:
            assert span.name in EVENTS[event.name].spans
            assert event.attributes.keys() == set(EVENTS[event.name].attributes)
            assert span.start_s <= event.at_s <= span.end_s
        if not span.parent_id:
            assert kind.parent == ""
            continue
        parent = by_id[span.parent_id]
        assert (parent.name, parent.trace_id) == (kind.parent, span.trace_id)
        assert parent.start_s <= span.start_s
        assert span.end_s <= parent.end_s


def check_stages(spans: list[TraceSpan]) -> None:
    """The stages of a trajectory follow each other without a gap."""
    stages = defaultdict(list)
    for span in spans:
        if SPANS[span.name].parent == "trajectory":
            stages[span.parent_id].append(span)
    for trajectory in (span for span in spans if span.name == "trajectory"):
        times = [(stage.start_s, stage.end_s) for stage in stages[trajectory.span_id]]
        assert [start for start, _ in times] == [trajectory.start_s, *(end for _, end in times[:-1])]
        assert times[-1][1] == trajectory.end_s


@settings(max_examples=30, deadline=None)
@given(config=CONFIGS, seed=SEEDS, length=LENGTHS)
def test_every_group_of_a_run_with_faults_has_one_root_with_its_outcome_and_nothing_stays_open(
    config: Config, seed: int, length: int
) -> None:
    cluster, dice = TracedCluster(config, num_held_out=2), Random(seed)
    start_all(cluster)
    chaos = Chaos(cluster)
    for _ in range(length):
        if not cluster.is_over:
            chaos.act(dice)
    run_to_the_end(cluster, dice)
    if cluster.cause:
        return
    cluster.commit()
    ends: dict[int, str] = {}
    for record in cluster.records:
        match record:
            case Taken(group_ids=group_ids):
                ends |= dict.fromkeys(group_ids, "trained")
            case Dropped(group_id=group_id):
                ends[group_id] = "dropped"
            case Untrained(group_id=group_id):
                ends[group_id] = "untrained"
    found = roots(cluster.spans)
    assert {group_id: [root.attributes["outcome"] for root in found[group_id]] for group_id in found} == {
        group_id: [outcome] for group_id, outcome in ends.items()
    }
    ended = {root.trace_id for of_group in found.values() for root in of_group}  # Others, of a run that met its goal.
    spans = [span for span in cluster.spans if span.trace_id in ended or SPANS[span.name].parent == ""]
    assert spans == cluster.spans or cluster.scheduler.has_met_goal
    check_spans(spans)
    check_stages(spans)
    num_rewards = sum(isinstance(record, Rewarded) and record.unit.split == "train" for record in cluster.records)
    told = Counter(span.name for span in cluster.spans if "reward" in span.attributes)
    assert (told["trajectory"], told["grading"]) == (num_rewards, num_rewards)


@settings(max_examples=20, deadline=None)
@given(config=CONFIGS, seed=SEEDS, length=LENGTHS)
def test_a_broker_that_restarts_tells_nothing_twice_and_goes_on_with_the_traces_of_open_groups(
    config: Config, seed: int, length: int
) -> None:
    first, dice = TracedCluster(config), Random(seed)
    start_all(first)
    for _ in range(length):
        if not first.is_over:
            dice.choice(first.actions())[1]()
    num_told = len(first.spans)
    second = TracedCluster(config, before=first)
    assert len(second.spans) == num_told, "a replay tells nothing"
    untaken = {group.group_id for group in second.scheduler.training.batches}
    taken = {group_id for group_ids in second.scheduler.window.consumed.values() for group_id in group_ids}
    start_all(second)
    run_to_the_end(second, dice)
    if second.cause:
        return
    later = second.spans[num_told:]
    check_spans(later)
    check_stages(later)
    resumed = {group_id for group_id, (root,) in roots(later).items() if "resumed" in root.attributes}
    assert resumed == untaken | taken
    ids = TraceIds("run-1", 1)
    assert all(root.trace_id == ids.trace(group_id) for group_id, (root,) in roots(later).items())


def test_a_stopping_broker_ends_what_is_open_and_says_so():
    cluster = TracedCluster(a_config())
    start_all(cluster)
    while not cluster.scheduler.dispatcher.leases:
        cluster.actions()[0][1]()
    cluster.traces.stop()
    check_spans(cluster.spans)
    window = cluster.scheduler.window
    assert {span.attributes["outcome"] for found in roots(cluster.spans).values() for span in found} == {"open"}
    assert len(roots(cluster.spans)) == window.num_open
    assert {span.error for span in cluster.spans} == {""}


def test_a_filtered_group_fails_with_its_reason():
    cluster = TracedCluster(a_config(schedule={"groups_per_step": 2, "group_size": 2, "filter": "zero_variance"}))
    start_all(cluster)
    run_to_the_end(cluster, Random(0))
    filtered = {record.group_id for record in cluster.records if isinstance(record, Dropped)}
    assert filtered
    assert {group_id for group_id, (root,) in roots(cluster.spans).items() if root.error == ZERO_VARIANCE} == filtered


def lives() -> GroupLives:
    return GroupLives(TraceIds("run-1", 1), 0.0)


def test_groups_that_are_not_open_are_passed_over():
    told = lives()
    held_out = Rewarded(Unit(0, 0, "held_out"), 1.0)
    records: list[AnyRecord] = [Rewarded(Unit(3, 0), 1.0), Restarted(3, 1, [8]), Dropped(3, "late", 8), held_out]
    assert told.observe([], records, 1.0) == []
    assert len(told) == 0


def test_a_lease_of_a_held_out_group_is_not_one_of_the_training_group_with_its_id():
    told = lives()
    told.observe([], [Admitted(0, 0, 0, 0)], 1.0)
    lease = Lease(1, 0, [0], "held_out", None, Sampling(8), None, 8, 60.0)  # type: ignore[arg-type]
    told.observe([OutgoingMessage("a.0", lease)], [], 2.0)
    assert [span.name for span in told.stop(3.0)] == [ROOT]


def test_a_name_with_points_is_kept():
    told = lives()
    told.observe([], [Admitted(0, 0, 0, 0)], 1.0)
    lease = Lease(1, 0, [0], "train", None, Sampling(8), None, 8, 60.0)  # type: ignore[arg-type]
    told.observe([OutgoingMessage("rollout-gpu.example.org.5f", lease)], [], 2.0)
    (generating, *_) = told.stop(3.0)
    assert generating.attributes["node"] == "rollout-gpu.example.org"


# ── test ids ──────────────────────────────────────────────────────────────────────────────────
# Ids: a trace keeps its id over the lives of the broker, and no span has the id of another.


def test_a_trace_keeps_its_id_when_the_broker_restarts_and_no_other_run_has_it():
    first, second, other = TraceIds("run-1", 1), TraceIds("run-1", 2), TraceIds("run-2", 1)
    assert first.trace(7) == second.trace(7)
    assert len({first.trace(7), first.trace(8), other.trace(7)}) == 3


def test_no_two_spans_of_a_run_have_one_id():
    lives = [TraceIds("run-1", term) for term in (1, 2)]
    spans = {ids.next_span() for ids in lives for _ in range(1000)}
    assert len(spans) == 2000
    assert all(0 < span < 1 << 64 for span in spans)


def test_half_of_the_traces_are_in_the_lower_half_where_samplers_look():
    ids = TraceIds("run-1", 1)
    lower = sum(ids.trace(group_id) % (1 << 64) < 1 << 63 for group_id in range(1000))
    assert 400 < lower < 600


# ── test traces ───────────────────────────────────────────────────────────────────────────────
# The shell: spans are handed over as they end, and time never goes back.


def test_the_clock_tells_unix_time_and_does_not_go_back_with_the_machine(monkeypatch):
    clock = unix_clock()
    before_s = clock()
    assert abs(before_s - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock() >= before_s


def test_nothing_is_handed_over_when_nothing_ends():
    handed: list[Sequence[TraceSpan]] = []
    told = Traces(a_scheduler(a_config()), TraceIds("run-1", 1), handed.append)
    told.observe([], [])
    told.stepped(0)
    told.stop()
    assert handed == []


def test_spans_are_handed_over_while_the_run_goes_on():
    cluster = TracedCluster(a_config())
    start_all(cluster)
    while not cluster.is_over and not cluster.spans:
        cluster.actions()[0][1]()
    assert not cluster.is_over
