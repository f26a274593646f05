import pytest
from msgspec.structs import replace

from asyncrl.broker.failures import FailureBook
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import Admitted, Record, SamplingPaused, SettingsSet
from asyncrl.broker.nodes.availability import waits
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.settings import Supervisors
from asyncrl.broker.status import run_status
from asyncrl.config.config import Config
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Lease
from asyncrl.messages.session import Hello
from asyncrl.messages.supervisor import Failures, Paused
from asyncrl.messages.wire import PROTOCOL
from tests.broker.driver import Cluster, Node, Rollout, a_config
from tests.broker.test_scheduler import HELD_OUT, a_published, events, finish_all, heard, of, publish

# ── test pause ────────────────────────────────────────────────────────────────────────────────
# Pause of sampling: what stops, what goes on, and who remembers it.


class Operator(Node):
    role = "supervisor"


def pause(cluster: Cluster, *, is_paused: bool = True) -> None:
    scheduler = cluster.scheduler
    cluster._run(lambda: scheduler.set_paused(is_paused=is_paused, by="alice", at_s=1.0, now_s=cluster.now_s))
    cluster.exchange()


def rollout(cluster: Cluster) -> Rollout:
    return next(node for node in cluster.nodes.values() if isinstance(node, Rollout))


def test_a_paused_run_grants_no_lease_and_finishes_what_is_in_hand() -> None:
    cluster = a_published()
    sampled = rollout(cluster)
    in_hand = len(sampled.running)
    pause(cluster)
    assert len(sampled.running) == in_hand

    finish_all(cluster, sampled)
    assert sampled.running == {}
    assert cluster.scheduler.training.batches.next_step == 1, "the step that it completed is taken"
    cluster.settle()
    assert cluster.scheduler.transfers.live_version == 1, "and its version goes live"
    assert cluster.scheduler.dispatcher.unleased.first() is not None


def test_a_paused_run_waits_for_as_long_as_it_takes_and_then_goes_on_to_its_end() -> None:
    cluster = a_published()
    pause(cluster)
    cluster.settle()
    for _ in range(40):
        cluster.tick(100.0)
    assert not cluster.is_over
    assert not [event for event in cluster.events if event.kind in ("lease.expired", "node.lost", "run.waiting")]

    pause(cluster, is_paused=False)
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert cluster.cause == ""
    assert audit(cluster.records, cluster.config.schedule).problems == []


def test_an_evaluation_of_a_paused_run_goes_on_when_the_run_does() -> None:
    cluster = Cluster(HELD_OUT, num_held_out=6)
    cluster.start_reward("r")
    cluster.start_trainer()
    sampled = cluster.start_rollout("a", capacity=2)
    publish(cluster)
    pause(cluster)
    cluster.settle()
    assert sampled.running == {}
    assert cluster.scheduler.evaluation.ongoing is not None

    pause(cluster, is_paused=False)
    cluster.settle()
    assert cluster.scheduler.is_finished


def test_a_restarted_broker_is_still_paused_and_tells_its_supervisor() -> None:
    before = a_published()
    pause(before)
    cluster = Cluster(before.config, before=before)
    assert cluster.scheduler.settings.paused_by == "alice"

    operator = cluster._start(Operator("supervisor-0"))
    cluster.scheduler.joined(operator.peer, Hello(PROTOCOL, "supervisor", "supervisor-0", "0"), 0.0)
    operator.outbox.clear()
    cluster.tick()
    cluster.commit()
    assert heard(operator, Paused) == [Paused(True, "alice")]

    pause(cluster, is_paused=False)
    assert not Cluster(before.config, before=cluster).scheduler.settings.paused_by


def test_the_ledger_has_each_change_once() -> None:
    cluster = a_published()
    for is_paused in (True, True, False, False):
        pause(cluster, is_paused=is_paused)
    assert of(cluster, SamplingPaused) == [SamplingPaused(True, "alice", 1.0), SamplingPaused(False, "alice", 1.0)]


def test_the_answer_waits_for_the_disk() -> None:
    cluster = a_published()
    operator = cluster._start(Operator("operator-1"))
    cluster.hear(operator)
    scheduler = cluster.scheduler
    cluster._run(lambda: scheduler.set_paused(is_paused=True, by="operator-1", at_s=1.0, now_s=0.0))
    assert heard(operator, Paused) == []
    cluster.commit()
    assert heard(operator, Paused) == [Paused(True, "operator-1")]


def test_a_run_that_is_ended_while_paused_may_sample_what_its_last_version_needs() -> None:
    cluster = a_published(capacity=2)
    pause(cluster)
    finish_all(cluster, rollout(cluster))
    assert rollout(cluster).running == {}
    cluster.scheduler.is_over = True
    cluster.tick()
    cluster.exchange()
    assert rollout(cluster).running != {}


def test_no_rollout_is_missed_while_sampling_is_paused() -> None:
    cluster = a_published()
    cluster.kill(rollout(cluster))
    assert [wait.role for wait in waits(cluster.scheduler)] == ["rollout"]
    pause(cluster)
    assert waits(cluster.scheduler) == []


def test_the_status_says_who_paused_the_run_and_who_waits_for_that() -> None:
    cluster = a_published(a_config())
    finish_all(cluster, rollout(cluster))
    pause(cluster)
    cluster.settle()
    told = run_status(cluster.scheduler, cluster.now_s, run="run")
    assert told.state == "paused"
    assert told.notes[0].startswith("paused by alice: rollouts get no new leases")
    waits_for = {node.node: node.waits_for for node in told.nodes}
    assert waits_for["a"] == "an operator, who paused sampling"
    assert waits_for["trainer"].endswith("of 2 groups complete, sampling is paused")


# ── test settings ─────────────────────────────────────────────────────────────────────────────
# Settings that an operator changes while the run goes on: each is honoured, recorded, and survives a restart.


def change(cluster: Cluster, *assignments: str) -> None:
    scheduler = cluster.scheduler
    values = scheduler.settings.assigned(assignments)
    cluster._run(lambda: scheduler.set_settings(values, by="alice", at_s=1.0, now_s=cluster.now_s))


def restarted(before: Cluster) -> Cluster:
    before.commit()
    return Cluster(before.config, before=before)


def ended(config: Config, *, at_step: int, assignment: str) -> Cluster:
    """A run to its end, in which a setting is changed once ``at_step`` steps got a batch."""
    cluster = a_published(config, capacity=64)
    while cluster.scheduler.training.batches.next_step < at_step:
        cluster.actions()[0][1]()
    change(cluster, assignment)
    cluster.settle()
    assert cluster.scheduler.is_finished, cluster.cause
    return cluster


# ── schedule.staleness ──────────────────────────────────────────────────────────────────────


def test_a_larger_staleness_admits_more_groups_at_once() -> None:
    cluster = a_published()
    assert cluster.scheduler.window.num_open == 4
    change(cluster, "schedule.staleness=2")
    assert (cluster.scheduler.window.size, cluster.scheduler.window.num_open) == (6, 6)


def test_a_smaller_staleness_admits_none_until_the_window_has_room() -> None:
    cluster = a_published(a_config(schedule={"groups_per_step": 2, "group_size": 2, "staleness": 2}), capacity=64)
    change(cluster, "schedule.staleness=0")
    assert (cluster.scheduler.window.size, cluster.scheduler.window.room) == (2, -4)
    admitted = len(of(cluster, Admitted))
    while len(of(cluster, Admitted)) == admitted:
        cluster.actions()[0][1]()
    assert cluster.scheduler.window.num_open == 2
    cluster.settle()
    assert cluster.scheduler.is_finished


def test_the_audit_holds_each_group_to_the_bound_under_which_it_was_admitted() -> None:
    config = a_config(run={"steps": 8}, schedule={"groups_per_step": 2, "group_size": 2, "staleness": 0})
    cluster = ended(config, at_step=3, assignment="schedule.staleness=3")
    accounts = audit(cluster.records, config.schedule)
    assert accounts.problems == []
    assert (accounts.window, accounts.peak_open) == (8, 8)
    assert accounts.staleness_max > 0, "later groups are older than the first bound allows"

    silent: list[Record] = [record for record in cluster.records if not isinstance(record, SettingsSet)]
    problems = audit(silent, config.schedule).problems  # type: ignore[arg-type]
    assert any("groups were open at once, but the window holds 2" in problem for problem in problems)
    assert any("is stale beyond its bound" in problem for problem in problems)


def test_a_smaller_window_is_what_the_audit_expects_of_later_admissions() -> None:
    config = a_config(run={"steps": 8}, schedule={"groups_per_step": 2, "group_size": 2, "staleness": 3})
    cluster = ended(config, at_step=2, assignment="schedule.staleness=0")
    assert audit(cluster.records, config.schedule).problems == []

    place = next(i for i, record in enumerate(cluster.records) if isinstance(record, SettingsSet))
    early = [cluster.records[place], *cluster.records[:place], *cluster.records[place + 1 :]]
    assert "8 groups were open at once, but the window holds 2" in audit(early, config.schedule).problems


def test_staleness_that_is_kept_by_waiting_stays_kept_when_the_window_changes() -> None:
    schedule = {"groups_per_step": 2, "group_size": 2, "staleness": 0, "order": "completion", "max_staleness": 2}
    for before, after in ((0, 2), (2, 0), (2, 1)):
        config = a_config(run={"steps": 8}, schedule=schedule | {"staleness": before})
        cluster = ended(config, at_step=3, assignment=f"schedule.staleness={after}")
        accounts = audit(cluster.records, config.schedule)
        assert accounts.problems == []
        assert accounts.staleness_max <= 2


# ── sampling.max_tokens ─────────────────────────────────────────────────────────────────────


def lengths(cluster: Cluster) -> dict[int, int]:
    """Longest completion by group, in the leases that a rollout has yet to hear."""
    return {lease.group_id: lease.sampling.max_tokens for lease in heard(rollout(cluster), Lease)}


def test_a_shorter_length_is_for_groups_admitted_from_then_on() -> None:
    cluster = a_published(capacity=4)
    change(cluster, "sampling.max_tokens=64", "schedule.staleness=2")
    sampled = rollout(cluster)
    for unit in list(sampled.running):
        sampled.finish(unit)
    while cluster.spool:
        cluster.store()
    cluster.commit()
    while sampled.inbox:
        sampled.take(sampled.inbox.popleft())
    while sampled.outbox:
        cluster.hear(sampled)
    assert lengths(cluster) == {2: 128, 3: 128}

    later = [group.max_tokens for group in cluster.scheduler.groups.train.values()]
    assert later == [0, 0, 0, 0, 64, 64]


def test_nodes_that_join_make_room_for_the_length_that_may_be_set_again() -> None:
    cluster = a_published()
    change(cluster, "sampling.max_tokens=64", "trainer.lr=0.5")
    config = cluster.scheduler.settings.nodes_config
    assert (config.sampling.max_tokens, config.trainer.lr) == (128, 0.5)
    change(cluster, "sampling.max_tokens=128")
    assert cluster.scheduler.training.admission.max_tokens == 0


def test_an_evaluation_keeps_its_own_length_and_otherwise_takes_the_new_one() -> None:
    for config, expected in ((HELD_OUT, 50), (with_no_length(HELD_OUT), 64)):
        cluster = Cluster(config, num_held_out=2)
        change(cluster, "sampling.max_tokens=64")
        cluster.start_trainer()
        cluster.start_rollout("a")
        publish(cluster)
        groups = cluster.scheduler.groups.held_out.values()
        assert {group.max_tokens for group in groups} == {expected}


def test_a_result_tells_the_length_that_it_was_measured_with_if_a_setting_changed_it() -> None:
    for assignments, expected in (((), [None, None]), (("sampling.max_tokens=64",), [64, 64])):
        cluster = Cluster(with_no_length(HELD_OUT), num_held_out=2)
        change(cluster, *assignments)
        cluster.start_rollout("a", 64)
        cluster.start_reward("r")
        cluster.start_trainer()
        cluster.settle()
        assert [event.fields.get("max_tokens") for event in events(cluster, "eval.finished")] == expected


def with_no_length(config: Config) -> Config:
    return replace(config, evaluation=replace(config.evaluation, max_tokens=0))


# ── evaluation.every_versions, trainer.lr ────────────────────────────────────────────────


def test_evaluations_follow_the_new_interval() -> None:
    config = replace(HELD_OUT, run=replace(HELD_OUT.run, steps=8))
    cluster = Cluster(config, num_held_out=2)
    cluster.start_rollout("a", 64)
    cluster.start_reward("r")
    cluster.start_trainer()
    change(cluster, "evaluation.every_versions=2")
    cluster.settle()
    assert [result.policy_version for result in cluster.scheduler.evaluation.results] == [0, 2, 4, 6, 8]


def test_a_step_that_is_asked_for_again_keeps_the_learning_rate_with_which_it_was_first_trained() -> None:
    """A trainer that repeats steps must make the weights that rollouts have already."""
    before = a_published(a_config(trainer={"lr": 0.25}), capacity=64)
    finish_all(before, rollout(before))
    change(before, "trainer.lr=0.5")
    before.settle()
    assert {step: batch.lr for step, batch in before.disk.batches.items()} == {0: 0.25, 1: 0.5, 2: 0.5, 3: 0.5}

    half = a_published(a_config(trainer={"lr": 0.25}), capacity=64)
    finish_all(half, rollout(half))
    change(half, "trainer.lr=0.5")
    finish_all(half, rollout(half))
    half.commit()
    after = Cluster(half.config, before=half)
    after.start_rollout("a", 64)
    after.start_reward("r")
    after.start_trainer()
    after.settle()
    assert after.scheduler.is_finished
    assert [after.disk.batches[step].lr for step in range(4)] == [0.25, 0.5, 0.5, 0.5]


# ── every setting ───────────────────────────────────────────────────────────────────────────


def test_a_restarted_broker_has_the_settings_and_admits_the_same_groups_with_the_same_lengths() -> None:
    before = a_published(capacity=8)
    change(before, "staleness=2", "sampling.max_tokens=64", "evaluation.every_versions=3", "trainer.lr=0.5")
    finish_all(before, rollout(before))
    after = restarted(before)
    assert after.scheduler.config == before.scheduler.config
    assert after.scheduler.settings.values == before.scheduler.settings.values
    assert (after.scheduler.window.size, after.scheduler.window.room) == (6, before.scheduler.window.room)
    assert after.scheduler.evaluation.every_versions == 3
    kept = [{g: group.max_tokens for g, group in c.scheduler.groups.train.items()} for c in (before, after)]
    assert kept[0] == kept[1]
    assert 64 in kept[0].values()


def test_a_change_is_recorded_and_told_with_the_value_before_and_its_operator() -> None:
    cluster = a_published()
    change(cluster, "trainer.lr=0.5")
    change(cluster, "trainer.lr=0.5")
    assert of(cluster, SettingsSet) == [SettingsSet({"trainer.lr": 0.5}, "alice", 1.0)]
    assert [event.fields for event in events(cluster, "setting.changed")] == [
        {"key": "trainer.lr", "value": 0.5, "before": 1e-6, "by": "alice"}
    ]
    told = run_status(cluster.scheduler, 0.0, run="run")
    assert told.notes == ["set live: trainer.lr = 0.5"]


# ── test supervisors ──────────────────────────────────────────────────────────────────────────
# What supervisors are told, also those that join later.

CAUSE = "reward: KeyError: 'answer' (score.py:3)"


class Office:
    def __init__(self) -> None:
        self.nodes, self.failures, self.out = NodeBook(), FailureBook(), Outbox()
        self.supervisors = Supervisors(self.nodes, self.failures, self.out)

    def join(self, name: str, paused_by: str = "") -> None:
        self.supervisors.joined(self.nodes.join(name, Hello(PROTOCOL, "supervisor", name, "0"), 0.0), paused_by)

    def fail(self, times: int) -> None:
        self.failures.count("reward", CAUSE.removeprefix("reward: "), times)

    def told(self) -> list[tuple[str, Message]]:
        messages, _, self.events = self.out.drain()
        return [(outgoing.peer, outgoing.message) for outgoing in messages]


@pytest.fixture
def office() -> Office:
    return Office()


def test_all_supervisors_are_told(office: Office) -> None:
    office.join("a")
    office.join("b")
    office.supervisors.tell(Paused(True, "alice"))
    assert office.told() == [("a", Paused(True, "alice")), ("b", Paused(True, "alice"))]


def test_a_supervisor_of_a_healthy_run_is_told_nothing_when_it_joins(office: Office) -> None:
    office.join("a")
    assert office.told() == []


def test_one_that_joins_later_is_told_of_the_pause_and_of_what_failed(office: Office) -> None:
    office.fail(3)
    office.join("a", paused_by="alice")
    assert office.told() == [("a", Failures({CAUSE: 3}, {"reward": 3})), ("a", Paused(True, "alice"))]


def test_failures_are_told_once_and_are_events(office: Office) -> None:
    office.join("a")
    office.fail(2)
    office.supervisors.tell_failures(0.0)
    assert office.told() == [("a", Failures({CAUSE: 2}, {"reward": 2}))]
    assert [(event.kind, event.fields["count"]) for event in office.events] == [("units.failed", 2)]

    office.supervisors.tell_failures(1000.0)
    assert office.told() == []
    assert office.events == []
