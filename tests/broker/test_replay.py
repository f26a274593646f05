"""A broker that restarts at any point loses no durable state, and invents none."""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import event, example, given, settings

from asyncrl.broker.groups.group import Group, SlotState
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
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
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant, LedgerError
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Lease, Offer
from asyncrl.messages.session import Hello, Ready
from asyncrl.messages.spool import SpoolRef, Stored, StoredItem
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trainer import Batch, Commit, Take
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.weights import Live, Published, Publishing, Transfer, Transferred
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from tests.broker.chaos import CONFIGS, SEEDS, Chaos, check, check_promises, run_to_the_end, start_all
from tests.broker.driver import PERMITS, Cluster, Rollout, a_config, a_scheduler

PLAIN = a_config()
HELD_OUT = a_config(data={"train": "train.jsonl", "held_out": "held_out.jsonl"}, evaluation={"every_versions": 1})
REF = SpoolRef("spool", 0, 0, 8, 0)
SUMMARY = TrajectorySummary(8, 4, 0, 0, 1, "stop")


def replayed(records: Iterable[AnyRecord], config: Config = PLAIN) -> Scheduler:
    """Scheduler of the second broker of a run, after a replay without output."""
    scheduler = a_scheduler(config, num_held_out=2 if config.data.held_out else 0, broker_term=2)
    replay(scheduler, records)
    assert scheduler.out.drain() == ([], [], [])
    return scheduler


# ── at any point ────────────────────────────────────────────────────────────────────────────


def durable(scheduler: Scheduler) -> dict[str, Any]:
    """State that must outlive the broker. Leases and ongoing gradings do not."""

    def seen(group: Group) -> list[Any]:
        slots = [
            (SlotState.MISSING if slot.state is SlotState.LEASED else slot.state, slot.attempts, slot.ref, slot.summary,
             slot.reward, slot.metrics, slot.num_refused, slot.void_below)
            for slot in group.slots
        ]  # fmt: skip
        return [group.prompt, group.min_version, group.num_scored, group.untrained, slots]

    window, training, evaluation = scheduler.window, scheduler.training, scheduler.evaluation
    batches, admission = training.batches, training.admission
    return {
        "groups": {group_id: seen(group) for group_id, group in scheduler.groups.train.items()},
        "window": (window._open, window.consumed, window.num_admitted, window.num_retired, window.peak),
        "queue": [group.group_id for group in batches],
        "complete": [group.group_id for group in batches.complete],
        "taken": [[group.group_id for group in batches.taken(step) or []] for step in range(batches.next_step)],
        "next": (batches.next_step, admission.next_group_id, admission.num_needed),
        "reached": (training.committed_step, scheduler.transfers.live_version),
        "measured": evaluation.results,
        "is due": not evaluation.is_finished,
    }


def num_stored(scheduler: Scheduler) -> int:
    """Training trajectories without a reward."""
    return sum(len(group.indices(SlotState.STORED)) for group in scheduler.groups.train.values())


def num_gradable(scheduler: Scheduler, config: Config) -> int:
    """Those of them that need not wait for others of their group."""
    groups = scheduler.groups.train.values()
    whole = [group for group in groups if {slot.state for slot in group.kept} == {SlotState.STORED}]
    return sum(len(group.kept) for group in whole) if config.reward.group else num_stored(scheduler)


def live_through(cluster: Cluster, dice: Random, most: int) -> None:
    """Start all nodes, then act up to ``most`` times, with faults."""
    start_all(cluster)
    faults = Chaos(cluster)
    for _ in range(dice.randrange(most)):
        if not cluster.is_over:
            faults.act(dice)
            check(cluster)


def send_late(cluster: Cluster) -> None:
    """Rollouts that outlive the broker finish their trajectories, and put all unsettled ones again."""
    for node in cluster.nodes.values():
        if isinstance(node, Rollout):
            for unit in list(node.running):
                node.finish(unit)
            node.put_again()


def damage_newest_checkpoint(cluster: Cluster) -> None:
    """Remove the newest checkpoint, unless the one before was removed already."""
    if cluster.disk.checkpoints[-1] > max(cluster.scheduler.training.committed_step, 0):
        cluster.disk.checkpoints.pop()


ABORTED = a_config(
    run={"steps": 5},
    data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
    schedule={
        "groups_per_step": 3,
        "staleness": 2.0,
        "max_attempts": 2,
        "order": "completion",
        "max_staleness": 2,
        "on_straggler": "wait",
    },
    evaluation={"every_versions": 2, "temperature": 1.0},
    checkpoint={"every_steps": 2},
)
"""With the seed below: an evaluation is due when a transfer is aborted, which a rollout has received all the same."""


@pytest.mark.slow("runs in virtual time")
@settings(max_examples=120, deadline=None)
@given(config=CONFIGS, seed=SEEDS)
@example(config=ABORTED, seed=1321)
def test_a_broker_that_dies_at_any_point_goes_on_and_the_accounts_of_all_its_lives_add_up(
    config: Config, seed: int
) -> None:
    dice = Random(seed)
    cluster = Cluster(config, num_held_out=2)
    for life in range(dice.randint(1, 4)):
        live_through(cluster, dice, 250)
        if cluster.cause:
            event("gave up")
            break
        event(f"life {life} ended with the run {'complete' if cluster.is_over else 'open'}")
        for mishap in (send_late, damage_newest_checkpoint):
            if dice.random() < 0.5:
                mishap(cluster)
        cluster = Cluster(config, num_held_out=2, before=cluster)
    start_all(cluster)
    run_to_the_end(cluster, dice)
    check_promises(cluster)


@settings(max_examples=120, deadline=None)
@given(config=CONFIGS, seed=SEEDS)
def test_replayed_the_books_are_what_they_were(config: Config, seed: int) -> None:
    dice = Random(seed)
    cluster = Cluster(config, num_held_out=2)
    live_through(cluster, dice, 600)
    cluster.commit()

    again = replayed(cluster.records, config)

    assert durable(again) == durable(cluster.scheduler)
    missing = [group.group_id for group in again.groups if group.indices(SlotState.MISSING)]
    assert sorted(again.dispatcher.unleased._groups) == missing
    assert num_stored(again) == num_stored(cluster.scheduler)
    assert again.grading.num_waiting == num_gradable(again, config)


# ── record by record ────────────────────────────────────────────────────────────────────────


def admitted(*group_ids: int, version: int = 0) -> list[AnyRecord]:
    return [Admitted(group_id, 0, group_id, version) for group_id in group_ids]


def result(group_id: int, index: int, split: str = "train") -> Result:
    return Result(Unit(group_id, index, split), 1 << 32, REF, SUMMARY)  # type: ignore[arg-type]


def complete(*group_ids: int) -> list[AnyRecord]:
    """Results and rewards of groups, in the order in which the groups became complete."""
    units = [(group_id, index) for group_id in group_ids for index in (0, 1)]
    return [record for unit in units for record in (result(*unit), Rewarded(Unit(*unit), 1.0, {"correct": 1.0}))]


FIRST_LIVE = VersionLive(0, 0)
STEP_0: list[AnyRecord] = [FIRST_LIVE, *admitted(0, 1, 2, 3), *complete(0, 1), Taken(0, [0, 1])]


class Desk:
    """A scheduler after its replay, with scripted nodes."""

    def __init__(self, *records: AnyRecord, config: Config = PLAIN) -> None:
        self.scheduler = replayed(records, config)
        self.sent: list[tuple[str, Message]] = []
        self.records: list[AnyRecord] = []
        self.events: list[str] = []

    def join(self, role: Role, name: str, *messages: Message) -> None:
        self.scheduler.joined(name, Hello(PROTOCOL, role, name, "0"), 0.0)
        self.say(name, *messages)

    def say(self, name: str, *messages: Message) -> None:
        for message in messages:
            self.scheduler.handle(name, message, 0.0)
        outbox, records, events = self.scheduler.out.drain()
        self.sent += [(outgoing.peer, outgoing.message) for outgoing in outbox]
        self.records += records
        self.events += [event.kind for event in events]

    def heard(self, kind: type[Message]) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def published(self, version: int, next_step: int) -> None:
        self.join("trainer", "t", Ready("plan"), Publishing(version, next_step))
        self.join("rollout", "a", Ready("plan"), Offer(8))
        transfer = self.heard(Transfer)[-1]
        for name in ("t", "a"):
            self.say(name, Transferred(transfer.transfer_group, version, 0.1, 8))
        self.say("a", Live(version, 0.1, 0.1))


def test_groups_are_there_with_their_prompts_their_version_and_what_was_sampled() -> None:
    records = [
        FIRST_LIVE,
        *admitted(0, 1),
        VersionLive(1, 0),
        *admitted(2, version=1),
        *complete(0),
        result(1, 1),
        FailedAttempt(Unit(2, 0), "rollout", "out of memory", 2, False),
        Reissued(Unit(2, 0), 5, "failed"),
        Duplicate(Unit(0, 0), 6, 8),
    ]
    scheduler = replayed(records)

    groups = scheduler.groups.train
    assert [groups[i].prompt.text for i in (0, 1, 2)] == ["question 0", "question 1", "question 2"]
    assert [groups[i].min_version for i in (0, 1, 2)] == [0, 0, 1]
    assert [groups[i].indices(SlotState.SCORED) for i in (0, 1, 2)] == [[0, 1], [], []]
    assert [groups[i].indices(SlotState.MISSING) for i in (0, 1, 2)] == [[], [0], [0, 1]]
    assert groups[0].slots[1].scored_trajectory().metrics == {"correct": 1.0}
    assert groups[2].slots[0].attempts == 2
    assert scheduler.dispatcher.unleased.first() is groups[1], "the oldest first"
    assert [slot.unit for slot in scheduler.grading.assign("r", 9)] == [Unit(1, 1)]


@pytest.mark.parametrize(
    ("cause", "is_kept"),
    [("node_lost", True), ("silent", True), ("failed", False), ("spool_away", False), ("environment_lost", False)],
)
def test_a_part_that_was_discarded_is_not_continued_by_the_next_broker(cause: str, is_kept: bool) -> None:
    unit = Unit(0, 0)
    begun = Progressed(unit, 5, REF, TrajectorySummary(8, 4, 0, 0, 1, "unfinished"))
    slot = replayed([FIRST_LIVE, *admitted(0), begun, Reissued(unit, 5, cause, 8)]).groups.train[0].slots[0]
    assert slot.ref == (REF if is_kept else None)


def test_leases_are_granted_again_with_ids_of_this_term() -> None:
    desk = Desk(FIRST_LIVE, *admitted(0, 1), result(0, 1))
    desk.published(0, 0)

    leases = desk.heard(Lease)
    assert [(lease.group_id, lease.indices) for lease in leases] == [(0, [0]), (1, [0, 1]), (2, [0, 1]), (3, [0, 1])]
    assert {lease.lease_id >> 32 for lease in leases} == {2}


def leased_before(unit: Unit, lease_id: int = 1 << 32) -> StoredItem:
    """Trajectory of a lease of the broker's first life."""
    permit = PERMITS.grant(lease_id, unit.group_id, unit.split, [unit.index])
    return StoredItem(unit, lease_id, REF, SUMMARY, permit)


def test_a_late_result_of_an_earlier_life_counts_once() -> None:
    desk = Desk(FIRST_LIVE, *admitted(0))
    desk.join("spool", "spool")
    item = leased_before(Unit(0, 0))

    desk.say("spool", Stored("a", "0", [item]), Stored("a", "0", [item]))

    assert [type(record) for record in desk.records] == [Result, *[Admitted] * 3]
    assert desk.scheduler.groups.train[0].indices(SlotState.STORED) == [0]


def test_a_result_that_is_recorded_is_not_thrown_away_when_its_node_sends_it_to_the_next_broker() -> None:
    desk = Desk(FIRST_LIVE, *admitted(0), result(0, 0))
    desk.join("spool", "spool")
    desk.say("spool", Stored("a", "1", [leased_before(Unit(0, 0), result(0, 0).lease_id)]))
    assert not [record for record in desk.records if isinstance(record, Duplicate)]


def test_a_late_result_older_than_its_group_is_admitted_for_today_is_not_kept() -> None:
    """An earlier broker leased it, but its record of the group's admission was lost."""
    desk = Desk(FIRST_LIVE, VersionLive(1, 0), *admitted(0, version=1))
    desk.join("spool", "spool")

    desk.say("spool", Stored("a", "0", [leased_before(Unit(0, 0))]))

    assert [r.unit for r in desk.records if isinstance(r, Duplicate)] == [Unit(0, 0)]
    assert desk.scheduler.groups.train[0].indices(SlotState.MISSING) == [0, 1]


def test_a_step_taken_before_gets_the_same_batch_and_is_not_taken_again() -> None:
    desk = Desk(*STEP_0)
    desk.join("trainer", "t", Take(0), Take(0))

    assert [[s.unit.group_id for s in batch.trajectories] for batch in desk.heard(Batch)] == [[0, 0, 1, 1]] * 2
    assert not [record for record in desk.records if isinstance(record, Taken)]
    assert desk.scheduler.training.batches.next_step == 1


@pytest.mark.parametrize(("order", "batch"), [("fifo", [2, 3]), ("windowed", [2, 3]), ("completion", [3, 2])])
def test_the_next_step_gets_what_it_would_have_got(order: str, batch: list[int]) -> None:
    config = a_config(schedule={"groups_per_step": 2, "group_size": 2, "order": order})
    desk = Desk(*STEP_0, *complete(3, 2), config=config)

    desk.join("trainer", "t", Take(1))

    assert [record.group_ids for record in desk.records if isinstance(record, Taken)] == [batch]


def test_the_window_is_as_full_as_it_was() -> None:
    full = replayed(STEP_0).window
    assert (full.num_open, full.room, full.num_retired) == (4, 0, 0)

    freed = replayed([*STEP_0, VersionLive(1, 1)]).window
    assert (freed.num_open, freed.room, freed.num_retired) == (2, 2, 2)


def test_a_dropped_group_does_not_come_back_and_is_made_up_for() -> None:
    config = a_config(run={"steps": 1})
    desk = Desk(FIRST_LIVE, *admitted(0, 1), Dropped(0, "rollout: out of memory", 0), config=config)
    desk.join("rollout", "a", Ready("plan"))

    assert [record.group_id for record in desk.records if isinstance(record, Admitted)] == [2]
    assert set(desk.scheduler.groups.train) == {1, 2}
    assert desk.scheduler.training.admission.num_needed == 0


def test_steps_since_the_checkpoint_before_the_newest_can_be_asked_for() -> None:
    records: list[AnyRecord] = [*STEP_0, *complete(2, 3), Committed(0, "step_000001"), Taken(1, [2, 3])]
    assert set(replayed(records).groups.train) == {0, 1, 2, 3}

    again = replayed([*records, Committed(1, "step_000002")])

    assert set(again.groups.train) == {2, 3}
    assert again.training.committed_step == 1
    assert again.training.batches.taken(0) is None
    assert again.training.batches.taken(1) == list(again.groups.train.values())


def test_a_checkpoint_named_again_changes_nothing() -> None:
    desk = Desk(*STEP_0, Committed(0, "step_000001"))
    desk.join("trainer", "t", Commit(0, "step_000001"))

    assert not desk.records
    assert "checkpoint.written" not in desk.events
    assert set(desk.scheduler.groups.train) == {0, 1, 2, 3}


# ── filtered and restarted ───────────────────────────────────────────────────────────────────


def test_a_group_whose_end_by_the_filter_was_not_written_any_more_ends_now() -> None:
    """The broker died after recording the last reward."""
    config = a_config(run={"steps": 1}, schedule={"groups_per_step": 2, "group_size": 2, "filter": "zero_variance"})
    desk = Desk(FIRST_LIVE, *admitted(0, 1), *complete(0), config=config)

    desk.join("rollout", "a", Ready("plan"))

    assert [(type(r), r.group_id) for r in desk.records] == [(Dropped, 0), (Admitted, 2)]  # type: ignore[union-attr]


def test_filtered_groups_are_counted_for_the_step_they_were_filtered_before() -> None:
    config = a_config(schedule={"groups_per_step": 2, "group_size": 2, "filter": "zero_variance"})
    scheduler = replayed([*STEP_0, Dropped(2, "zero_variance", 16), Dropped(3, "lost", 0)], config)

    assert [scheduler.training.filtering.metrics(step)["filtered_groups"] for step in (0, 1)] == [0.0, 1.0]
    assert scheduler.training.num_failed == 1, "only the other one failed"


def test_a_restarted_group_has_only_what_was_sampled_since() -> None:
    records = [FIRST_LIVE, *admitted(0), *complete(0), VersionLive(1, 1), Restarted(0, 1, [8, 8]), result(0, 1)]
    scheduler = replayed(records)

    group = scheduler.groups.train[0]
    assert (group.min_version, group.num_restarts, group.num_scored) == (1, 1, 0)
    assert (group.indices(SlotState.MISSING), group.indices(SlotState.STORED)) == ([0], [1])
    assert scheduler.training.batches.complete == []
    assert scheduler.window.num_open == 1


# ── versions ────────────────────────────────────────────────────────────────────────────────


def test_nothing_travels_until_the_trainer_is_back_at_the_live_version() -> None:
    desk = Desk(*STEP_0, VersionLive(1, 1))
    desk.join("rollout", "a", Ready("plan"))
    desk.join("trainer", "t", Ready("plan"), Publishing(0, 0))
    assert desk.heard(Published) == [Published(1)]
    assert not desk.heard(Transfer)

    desk.say("t", Publishing(1, 1))

    assert desk.heard(Published) == [Published(1), Published(1)]
    assert [(peer, m.policy_version) for peer, m in desk.sent if isinstance(m, Transfer)] == [("t", 1), ("a", 1)]
    assert not [record for record in desk.records if isinstance(record, VersionLive)]


def test_a_version_beyond_the_live_one_goes_to_everybody_as_ever() -> None:
    desk = Desk(*STEP_0, VersionLive(1, 1))
    desk.published(2, 2)

    assert [record for record in desk.records if isinstance(record, VersionLive)] == [VersionLive(2, 2)]


# ── evaluation ──────────────────────────────────────────────────────────────────────────────


def test_what_was_measured_is_known() -> None:
    measured = Measured(0, 0.25, 2, {"reward": 0.25})
    scheduler = replayed([FIRST_LIVE, result(0, 0, "held_out"), measured], HELD_OUT)

    assert scheduler.evaluation.results == [Evaluated(0, 0.25, 2, {"reward": 0.25})]
    assert scheduler.evaluation.is_finished


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([FIRST_LIVE], id="not started"),
        pytest.param([FIRST_LIVE, result(0, 0, "held_out"), Rewarded(Unit(0, 0, "held_out"), 1.0)], id="under way"),
        pytest.param([FIRST_LIVE, Measured(0, 1.0, 2), VersionLive(1, 1)], id="of the newest version"),
        pytest.param([FIRST_LIVE, VersionLive(1, 1), Measured(0, 1.0, 2)], id="ended after the next fell due"),
    ],
)
def test_an_evaluation_without_a_result_is_due_again(records: list[AnyRecord]) -> None:
    assert replayed(records, HELD_OUT).evaluation.is_waiting


def test_held_out_ids_of_earlier_lives_are_not_given_again_and_their_results_are_of_no_use() -> None:
    desk = Desk(FIRST_LIVE, result(1, 0, "held_out"), config=HELD_OUT)
    desk.published(0, 0)
    desk.join("spool", "spool")
    asked = [lease.group_id for lease in desk.heard(Lease) if lease.split == "held_out"]
    assert asked == [2, 3]

    desk.say("spool", Stored("a", "0", [leased_before(Unit(2, 0, "held_out"))]))

    assert [r.unit for r in desk.records if isinstance(r, Duplicate)] == [Unit(2, 0, "held_out")]


# ── what is refused ─────────────────────────────────────────────────────────────────────────


def test_another_data_order_is_told_with_both_places() -> None:
    with pytest.raises(LedgerError, match="group 3 was row 7 of epoch 0 when it was admitted, and is row 3 of epoch 0"):
        replayed([FIRST_LIVE, Admitted(3, 0, 7, 0)])


@pytest.mark.parametrize("record", [Taken(0, [9]), Dropped(9, "lost", 0), result(9, 0), Rewarded(Unit(9, 0), 1.0)])
def test_a_record_of_what_never_was_is_refused(record: AnyRecord) -> None:
    with pytest.raises((LedgerError, BrokenInvariant), match="9"):
        replayed([FIRST_LIVE, record])


def test_replay_is_for_a_fresh_scheduler() -> None:
    scheduler = replayed(STEP_0)
    with pytest.raises(BrokenInvariant, match="no node may have joined"):
        replay(scheduler, STEP_0)


def test_a_refused_result_is_void_for_a_restarted_broker_too() -> None:
    desk = Desk(*admitted(0), result(0, 0), Refused(Unit(0, 0), 9, "NaN", 8))
    slot = desk.scheduler.groups.train[0].slots[0]
    assert (slot.state, slot.ref, slot.num_refused, slot.void_below) == (SlotState.MISSING, None, 1, 9)


def test_a_group_that_its_step_left_out_stays_so() -> None:
    whole: list[AnyRecord] = [record for group_id in (0, 1) for index in (0, 1) for record in (
        result(group_id, index), Rewarded(Unit(group_id, index), 1.0))]  # fmt: skip
    refused: list[AnyRecord] = [FailedAttempt(Unit(1, 1), "trainer", "NaN", 1, True), Untrained(0, 1, "NaN", 16)]
    scheduler = replayed([VersionLive(0, 0), *admitted(0, 1), *whole, Taken(0, [0, 1]), *refused])
    assert [group.group_id for group in scheduler.training.trained(0)] == [0]
    assert scheduler.groups.train[1].slots[1].state is SlotState.GIVEN_UP


def test_a_restarted_broker_allows_for_versions_offered_before() -> None:
    assert replayed([VersionLive(3, 3)]).transfers.newest_version == 5
    assert replayed([]).transfers.newest_version == 1, "the record of the first version may be lost"
    assert a_scheduler(PLAIN, broker_term=1).transfers.newest_version == -1


# ── retired prompts ─────────────────────────────────────────────────────────────────────────


def retiring(steps: int) -> Cluster:
    """A run to its end, in which every third group is all correct, and its prompt is retired."""
    data = {"train": "train.jsonl", "retire_at": 0.9}
    cluster = Cluster(a_config(run={"steps": steps}, data=data, schedule={"filter": "zero_variance"}))
    start_all(cluster)
    run_to_the_end(cluster, Random(0))
    return cluster


def test_a_restarted_broker_admits_the_prompts_that_the_first_one_would_have_admitted() -> None:
    cluster = retiring(steps=4)
    admissions = [(place, one) for place, one in enumerate(cluster.records) if isinstance(one, Admitted)]
    late = [(place, one) for place, one in admissions if one.epoch]

    assert not cluster.cause
    assert late
    assert not {one.row for _, one in late} & {0, 3, 6, 9}, "retired in the first epoch"
    for place, record in late:
        _, again = replayed(cluster.records[:place], cluster.config).training.admission.admit(record.policy_version)
        assert again == record
    assert cluster.scheduler.training.admission.next_group_id > len(admissions), "ids of retired prompts are left out"


def test_retired_prompts_are_told_in_an_event_of_the_step_and_audited() -> None:
    cluster = retiring(steps=4)
    told = [event.fields for event in cluster.events if event.kind == "prompts.retired"]

    assert [fields["prompts"] for fields in told] == [10] * len(told)
    numbers = [fields["retired"] for fields in told]
    assert numbers == sorted(set(numbers))
    found = audit(cluster.records, cluster.config.schedule, retires=True)
    assert (found.problems, found.skipped) == ([], 0)
    assert found.retired


def test_a_run_whose_prompts_are_all_retired_fails_in_one_sentence() -> None:
    """Nine groups of these ten prompts have something to learn from: not enough for six steps of two."""
    assert retiring(steps=6).cause.startswith("all 10 prompts of data.train are retired")
