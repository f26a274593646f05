"""Guarantees of each ``on_straggler`` mode under random faults, and the handling of groups that are too old."""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from asyncrl.broker.ledger.records import Admitted, Duplicate, Refused, Restarted, Result, Rewarded, Taken, Untrained
from asyncrl.broker.metrics import batch_metrics
from asyncrl.config.config import Config
from asyncrl.messages.rollout import Cancelled, Settled
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import Unit
from tests.broker.chaos import (
    LENGTHS,
    MAX_ACTIONS,
    SEEDS,
    Chaos,
    audited,
    check,
    check_accounts,
    check_training,
    start_all,
)
from tests.broker.driver import Action, Cluster, Reward, Rollout, Trainer, a_config, version_of

STALENESS = st.sampled_from([0.0, 0.4, 1.0, 1.5, 2.0])


def configs(on_straggler: str, order: str = "completion") -> st.SearchStrategy[Config]:
    """Configs that allow this mode: ``wait`` needs a ``max_staleness`` of at least ``staleness``."""

    def made(groups: int, publish: int, staleness: float, extra: int) -> Config:
        least = ceil(staleness) if on_straggler == "wait" else 0
        never_late = order == "fifo" and int((1 + staleness) * groups * publish) <= (extra + 1) * groups * publish
        return a_config(
            run={"steps": 6},
            schedule={
                "groups_per_step": groups,
                "group_size": 2,
                "steps_per_publish": publish,
                "staleness": staleness,
                "order": order,
                "max_staleness": least + extra,
                "on_straggler": "wait" if never_late else on_straggler,
            },
        )

    return st.builds(made, st.integers(1, 3), st.integers(1, 2), STALENESS, st.integers(0, 1))


def is_slow(name: str) -> bool:
    """True for finishing a trajectory of every third group: these groups are slow."""
    _, is_finish, unit = name.partition("finish Unit(group_id=")
    return bool(is_finish) and int(unit.partition(",")[0]) % 3 == 0


def others_first(actions: Sequence[Action], dice: Random) -> Action:
    """Choose an action, mostly one that is not slow."""
    fast = [action for action in actions if not is_slow(action[0])]
    return dice.choice(fast if fast and dice.random() < 0.97 else actions)


def lived_through(config: Config, num_chaotic: int, seed: int) -> Cluster:
    dice, cluster = Random(seed), Cluster(config)
    start_all(cluster)
    faults = Chaos(cluster)
    for _ in range(num_chaotic):
        if not cluster.is_over:
            faults.act(dice)
            check(cluster)
    num_actions = 0
    while not cluster.is_over:
        actions = cluster.actions()
        assert actions, f"nothing is left to do, and the run is not finished: {cluster.scheduler.groups.train}"
        assert (num_actions := num_actions + 1) < MAX_ACTIONS
        others_first(actions, dice)[1]()
        check(cluster)
    if not cluster.cause:
        check_accounts(cluster)
        check_training(cluster)
    return cluster


def of(cluster: Cluster, kind: type[Any]) -> list[Any]:
    return [record for record in [*cluster.records, *cluster.uncommitted] if isinstance(record, kind)]


def stalenesses(cluster: Cluster) -> list[int]:
    """The trainer's version minus each group's ``min_version``: an upper bound on the staleness of its tokens."""
    publish, min_versions = cluster.config.schedule.steps_per_publish, {}
    found = []
    for record in cluster.records:
        match record:
            case Admitted() | Restarted():
                min_versions[record.group_id] = record.policy_version
            case Taken(step=step, group_ids=group_ids):
                found += [step // publish - min_versions[group_id] for group_id in group_ids]
    return found


# ── the promise of each mode ────────────────────────────────────────────────────────────────


@pytest.mark.slow("runs in virtual time")
@settings(max_examples=100, deadline=None)
@given(config=configs("wait"), num_chaotic=LENGTHS, seed=SEEDS)
def test_wait_keeps_max_staleness(config: Config, num_chaotic: int, seed: int) -> None:
    cluster = lived_through(config, num_chaotic, seed)
    if cluster.cause:
        return
    event(f"oldest {max(stalenesses(cluster))} of {config.schedule.max_staleness}")
    assert max(stalenesses(cluster)) <= config.schedule.max_staleness  # type: ignore[operator]
    assert not of(cluster, Restarted), "nothing is thrown away for its age"


@pytest.mark.slow("runs in virtual time")
@settings(max_examples=100, deadline=None)
@given(config=configs("reissue") | configs("reissue", "fifo"), num_chaotic=LENGTHS, seed=SEEDS)
def test_reissue_keeps_max_staleness(config: Config, num_chaotic: int, seed: int) -> None:
    cluster = lived_through(config, num_chaotic, seed)
    if cluster.cause:
        return
    restarts = of(cluster, Restarted)
    event(f"restarted: {'some' if restarts else 'none'}")
    assert max(stalenesses(cluster)) <= config.schedule.max_staleness  # type: ignore[operator]
    results = Counter(r.unit.group_id for r in of(cluster, Result))
    results.subtract(r.unit.group_id for r in of(cluster, Refused))
    thrown_away: Counter[int] = Counter()
    for restart in restarts:
        thrown_away[restart.group_id] += len(restart.lengths)
    for group_id in {g for record in of(cluster, Taken) for g in record.group_ids}:
        kept = config.schedule.group_size
        assert results[group_id] == kept + thrown_away[group_id], "each trajectory is trained on, or counted by length"
    assert audited(cluster).tokens_thrown_away["restarted"] == sum(sum(r.lengths) for r in restarts)


@pytest.mark.slow("runs in virtual time")
@settings(max_examples=100, deadline=None)
@given(config=configs("train"), num_chaotic=LENGTHS, seed=SEEDS)
def test_train_counts_what_is_over_max_staleness(config: Config, num_chaotic: int, seed: int) -> None:
    cluster = lived_through(config, num_chaotic, seed)
    if cluster.cause:
        return
    most = config.schedule.max_staleness
    assert most is not None
    left_out = {record.group_id for record in of(cluster, Untrained)}
    batches = {
        step: [one for one in batch.trajectories if one.unit.group_id not in left_out]
        for step, batch in cluster.disk.batches.items()
    }
    over = {
        step: sum(version_of(config, step) - sample.summary.oldest_version > most for sample in samples)
        for step, samples in batches.items()
    }
    event(f"over max_staleness: {'some' if any(over.values()) else 'none'}")
    assert audited(cluster).over_max_staleness == sum(over.values())
    assert not of(cluster, Restarted)
    for step, taken in cluster.scheduler.training.batches._taken.items():
        groups = [group for group in taken if group.group_id not in left_out]
        line = batch_metrics.line(Stepped(step, version_of(config, step), {}), groups, 0.0, 0.0, most)
        assert line["over_max_staleness"] * len(batches[step]) == over[step]


# ── waiting ─────────────────────────────────────────────────────────────────────────────────


def a_race(**schedule: object) -> Cluster:
    """One group per step, two in the window, in completion order; version 0 is live and both are leased."""
    rules: dict[str, object] = {"groups_per_step": 1, "group_size": 2, "order": "completion", **schedule}
    cluster = Cluster(a_config(run={"steps": 3}, schedule=rules))
    cluster.start_rollout("a", capacity=8)
    cluster.start_reward("r")
    cluster.start_trainer()
    publish(cluster)
    assert set(rollout(cluster).running) == {Unit(g, i) for g in (0, 1) for i in (0, 1)}
    return cluster


def rollout(cluster: Cluster) -> Rollout:
    return next(node for node in cluster.nodes.values() if isinstance(node, Rollout))


def judge_of(cluster: Cluster) -> Reward:
    return next(node for node in cluster.nodes.values() if isinstance(node, Reward))


def trainer(cluster: Cluster) -> Trainer:
    return next(node for node in cluster.nodes.values() if isinstance(node, Trainer))


def publish(cluster: Cluster) -> None:
    cluster.exchange()
    for node in (trainer(cluster), rollout(cluster)):
        while node.transfers:
            node.transferred()
            cluster.exchange()
    if rollout(cluster).staged_version > rollout(cluster).policy_version:
        rollout(cluster).swap()
    cluster.exchange()


def finish(cluster: Cluster, *group_ids: int) -> None:
    """Sample and reward these groups."""
    for unit in [unit for unit in rollout(cluster).running if unit.group_id in group_ids]:
        rollout(cluster).finish(unit)
    cluster.exchange()
    while judge_of(cluster).in_hand:
        judge_of(cluster).judge()
        cluster.exchange()


def train(cluster: Cluster) -> list[int]:
    """Train one step, and make its version live. Returns the groups of the step."""
    step = trainer(cluster).next_step
    taken = sorted({sample.unit.group_id for sample in trainer(cluster).batches[step].trajectories})
    trainer(cluster).train()
    publish(cluster)
    return taken


def test_a_step_waits_for_the_group_that_would_be_too_old_for_the_next_one() -> None:
    cluster = a_race(max_staleness=1)
    finish(cluster, 1)
    assert train(cluster) == [1]
    finish(cluster, 2)
    assert 1 not in trainer(cluster).batches, "group 2 is complete, but this is the last step of group 0"

    finish(cluster, 0)

    assert train(cluster) == [0]
    assert train(cluster) == [2]


def test_without_max_staleness_the_first_complete_go_first_however_old_the_others_get() -> None:
    cluster = a_race()
    finish(cluster, 1)
    assert train(cluster) == [1]
    finish(cluster, 2)

    assert train(cluster) == [2]


# ── restarting ──────────────────────────────────────────────────────────────────────────────


def a_restart() -> Cluster:
    """Group 1 is trained first; group 0 has one reward when version 1 goes live, and restarts."""
    cluster = a_race(max_staleness=0, on_straggler="reissue")
    rollout(cluster).finish(Unit(0, 0))
    finish(cluster, 1)
    assert trainer(cluster).batches, "step 0 has its batch"
    return cluster


def test_a_group_that_is_too_old_restarts_with_the_live_version() -> None:
    cluster = a_restart()
    before = rollout(cluster).running[Unit(0, 1)]

    assert train(cluster) == [1]

    assert of(cluster, Restarted) == [Restarted(0, 1, [8])]
    assert rollout(cluster).running[Unit(0, 1)] != before
    assert {rollout(cluster).running[Unit(0, i)][1] for i in (0, 1)} == {1}, "by version 1"
    assert [e.fields for e in cluster.events if e.kind == "group.restarted"] == [
        {"group_id": 0, "policy_version": 1, "tokens_thrown_away": 8}
    ]
    finish(cluster, 0)
    assert {s.summary.oldest_version for s in trainer(cluster).batches[1].trajectories} == {1}
    assert [(r.unit, r.num_restarts) for r in of(cluster, Result) if r.unit.group_id == 0] == [
        (Unit(0, 0), 0), (Unit(0, 0), 1), (Unit(0, 1), 1)
    ]  # fmt: skip


def test_its_leases_are_cancelled_and_their_credits_given_back() -> None:
    cluster = a_restart()
    node = rollout(cluster)
    (lease_id, _) = node.running[Unit(0, 1)]
    trainer(cluster).train()
    heard: list[object] = []
    take = node.take
    node.take = lambda message: (heard.append(message), take(message))[1]  # type: ignore[method-assign,func-returns-value]

    publish(cluster)

    assert Cancelled([lease_id]) in heard
    known = cluster.scheduler.nodes.get(node.peer)
    assert known is not None
    assert known.credits == 8 - len(node.running) - len(node.unsettled)


def test_a_result_finished_before_a_restart_and_reported_after_it_is_not_kept() -> None:
    cluster = a_restart()
    rollout(cluster).finish(Unit(0, 1))
    late = cluster.spool.pop()

    train(cluster)
    cluster.spool.append(late)
    cluster.exchange()

    assert [(r.unit, r.lease_id) for r in of(cluster, Duplicate)] == [(Unit(0, 1), late.items[0].lease_id)]
    assert not [r for r in of(cluster, Result) if r.unit == Unit(0, 1)]
    assert Unit(0, 1) in rollout(cluster).running, "its node was not told to forget what it samples now"
    finish(cluster, 0)
    assert {s.summary.oldest_version for s in trainer(cluster).batches[1].trajectories} == {1}


def test_a_report_on_an_older_lease_leaves_a_new_one_alone() -> None:
    cluster = a_restart()
    rollout(cluster).finish(Unit(0, 1))
    late = cluster.spool.pop()
    trainer(cluster).train()
    cluster.exchange()
    for node in (trainer(cluster), rollout(cluster)):
        node.transferred()
    cluster.exchange()
    rollout(cluster).swap()
    cluster.spool.append(late)
    cluster.store()
    assert [type(out.message) for out in cluster.unsent] == [Settled]

    cluster.hear(rollout(cluster))

    assert of(cluster, Restarted) == [Restarted(0, 1, [8, 8])]
    assert [type(out.message) for out in cluster.unsent] == [Settled], "it comes after the new lease"
    cluster.exchange()
    assert {Unit(0, 0), Unit(0, 1)} <= set(rollout(cluster).running)


def test_a_reward_of_a_discarded_trajectory_is_not_given_to_the_next_one() -> None:
    cluster = a_race(max_staleness=0, on_straggler="reissue")
    finish(cluster, 1)
    rollout(cluster).finish(Unit(0, 0))
    cluster.exchange()
    (old,) = judge_of(cluster).in_hand
    train(cluster)
    rollout(cluster).finish(Unit(0, 0))
    cluster.exchange()
    assert [item.unit for item in judge_of(cluster).in_hand] == [Unit(0, 0)] * 2

    judge_of(cluster).judge()
    cluster.exchange()
    assert not [r for r in of(cluster, Rewarded) if r.unit == Unit(0, 0)]
    judge_of(cluster).judge()
    cluster.exchange()

    (verdict,) = [r for r in of(cluster, Rewarded) if r.unit == Unit(0, 0)]
    assert verdict.metrics["offset"] != old.ref.offset
    assert verdict.num_restarts == 1


def test_a_failed_grading_of_a_discarded_trajectory_is_no_attempt_of_the_next_one() -> None:
    cluster = a_race(max_staleness=0, on_straggler="reissue")
    finish(cluster, 1)
    rollout(cluster).finish(Unit(0, 0))
    cluster.exchange()
    train(cluster)
    rollout(cluster).finish(Unit(0, 0))
    cluster.exchange()

    judge_of(cluster).fail()
    cluster.exchange()

    assert cluster.scheduler.groups.train[0].slots[0].attempts == 0


def test_complete_groups_too_old_restart_like_any_other_and_no_step_takes_them_meanwhile() -> None:
    cluster = a_race(max_staleness=0, on_straggler="reissue")
    finish(cluster, 0, 1)
    trainer(cluster).train()
    cluster.exchange()
    assert 1 not in trainer(cluster).batches, "group 1 is complete, but of version 0, and step 1 is version 1's"
    assert not of(cluster, Restarted), "sampled now, it would be too old again"

    publish(cluster)

    assert of(cluster, Restarted) == [Restarted(1, 1, [8, 8])]


def test_a_broker_that_starts_again_knows_which_have_restarted() -> None:
    cluster = a_restart()
    train(cluster)
    finish(cluster, 0)
    cluster.commit()

    again = Cluster(cluster.config, before=cluster).scheduler

    for group_id, group in cluster.scheduler.groups.train.items():
        known = again.groups.train[group_id]
        assert (known.min_version, known.num_restarts, known.num_scored) == (
            group.min_version, group.num_restarts, group.num_scored
        )  # fmt: skip
    assert again.groups.train[0].num_restarts == 1


# ── over-sampling ───────────────────────────────────────────────────────────────────────────


def oversampled(**schedule: object) -> Cluster:
    rules: dict[str, object] = {
        "groups_per_step": 2, "group_size": 2, "staleness": 1.0, "order": "completion", **schedule
    }  # fmt: skip
    cluster = Cluster(a_config(run={"steps": 3}, schedule=rules))
    cluster.start_rollout("a", capacity=16)
    cluster.start_reward("r")
    cluster.start_trainer()
    publish(cluster)
    assert {unit.group_id for unit in rollout(cluster).running} == {0, 1, 2, 3}
    finish(cluster, 3)
    finish(cluster, 1)
    return cluster


def test_over_sampling_trains_on_the_first_complete_groups_and_the_others_go_on() -> None:
    cluster = oversampled()
    half_way = dict(rollout(cluster).running)

    assert train(cluster) == [1, 3]

    assert half_way.items() <= rollout(cluster).running.items(), "in the same lease, over new weights"
    assert {unit.group_id for unit in rollout(cluster).running} == {0, 2, 4, 5}
    finish(cluster, 0, 4)
    assert train(cluster) == [0, 4]


def test_on_policy_over_sampling_trains_on_the_first_complete_groups_and_the_others_restart() -> None:
    cluster = oversampled(max_staleness=0, on_straggler="reissue")

    assert train(cluster) == [1, 3]

    assert [(r.group_id, r.policy_version) for r in of(cluster, Restarted)] == [(0, 1), (2, 1)]
    assert {unit.group_id for unit in rollout(cluster).running} == {0, 2, 4, 5}
    assert {version for _, version in rollout(cluster).running.values()} == {1}
    finish(cluster, 0, 4)
    assert {s.summary.oldest_version for s in trainer(cluster).batches[1].trajectories} == {1}
