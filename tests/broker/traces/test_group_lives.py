"""Spans of a whole run, under any faults: nothing is missing, nothing is left, and all of it is in the table."""

from collections import Counter, defaultdict
from random import Random

from hypothesis import given, settings

from asyncrl.broker.groups.filtering import ZERO_VARIANCE
from asyncrl.broker.ledger.records import Admitted, AnyRecord, Dropped, Restarted, Rewarded, Untrained
from asyncrl.broker.outbox import Outgoing
from asyncrl.broker.traces.group_lives import GroupLives
from asyncrl.broker.traces.ids import TraceIds
from asyncrl.config.config import Config
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import Sampling, Unit
from asyncrl.observe.traces.span import Span
from asyncrl.observe.traces.table import EVENTS, ROOT, SPANS
from tests.broker.chaos import CONFIGS, LENGTHS, SEEDS, Chaos, run_to_the_end, start_all
from tests.broker.driver import a_config
from tests.broker.traces.traced import TracedCluster


def roots(spans: list[Span]) -> dict[int, list[Span]]:
    found = defaultdict(list)
    for span in spans:
        if span.name == ROOT:
            found[int(span.attributes["group_id"])].append(span)
    return found


def check_spans(spans: list[Span]) -> None:
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


def check_stages(spans: list[Span]) -> None:
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
            case Admitted(group_id=group_id):
                ends[group_id] = "trained"
            case Dropped(group_id=group_id):
                ends[group_id] = "dropped"
            case Untrained(group_id=group_id):
                ends[group_id] = "untrained"
    found = roots(cluster.spans)
    assert {group_id: [root.attributes["outcome"] for root in found[group_id]] for group_id in found} == {
        group_id: [outcome] for group_id, outcome in ends.items()
    }
    check_spans(cluster.spans)
    check_stages(cluster.spans)
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
    told.observe([Outgoing("a.0", lease)], [], 2.0)
    assert [span.name for span in told.stop(3.0)] == [ROOT]


def test_a_name_with_points_is_kept():
    told = lives()
    told.observe([], [Admitted(0, 0, 0, 0)], 1.0)
    lease = Lease(1, 0, [0], "train", None, Sampling(8), None, 8, 60.0)  # type: ignore[arg-type]
    told.observe([Outgoing("rollout-gpu.example.org.5f", lease)], [], 2.0)
    (generating, *_) = told.stop(3.0)
    assert generating.attributes["node"] == "rollout-gpu.example.org"
