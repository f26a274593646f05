"""Settings that an operator changes while the run goes on: each is honoured, recorded, and survives a restart."""

from msgspec.structs import replace

from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import Admitted, Record, SettingsSet
from asyncrl.broker.status.status import run_status
from asyncrl.config.config import Config
from asyncrl.messages.rollout import Lease
from tests.broker.driver import Cluster, Rollout, a_config
from tests.broker.test_scheduler import HELD_OUT, a_published, events, finish_all, heard, of, publish


def change(cluster: Cluster, *assignments: str) -> None:
    scheduler = cluster.scheduler
    values = scheduler.settings.assigned(assignments)
    cluster._run(lambda: scheduler.set_settings(values, by="alice", at_s=1.0, now_s=cluster.now_s))


def rollout(cluster: Cluster) -> Rollout:
    return next(node for node in cluster.nodes.values() if isinstance(node, Rollout))


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
