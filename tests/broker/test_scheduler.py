"""The scheduler, message by message."""

from collections.abc import Sequence
from math import inf, nan
from typing import TypeVar

import pytest
from msgspec.structs import replace

from asyncrl.broker.groups.filtering import LEAST_IN_A_ROW
from asyncrl.broker.leases.lease import sampling_seed
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    LeftOut,
    Refused,
    Reissued,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.metrics.incidents import sentence
from asyncrl.broker.outbox import Event, OutgoingMessage
from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.reward import Grade, Scored, ScoredItem
from asyncrl.messages.rollout import Failed, Hold, Lease, Leased, Offer, Release, Settled
from asyncrl.messages.session import Beat, Bye, Draining, Hello, Ready
from asyncrl.messages.spool import Trim
from asyncrl.messages.supervisor import Evaluated, Failures, Notice
from asyncrl.messages.trainer import Batch, DamagedCheckpoint, Evaluating, Refusal, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.trajectory import TrajectoryLimits, Unit
from asyncrl.messages.weights import Abort, Published, Publishing, Transfer
from asyncrl.messages.wire import PROTOCOL
from tests.broker.driver import DAMAGED, SPOOL, Action, Cluster, Node, Reward, Rollout, Trainer, a_config, a_scheduler

T = TypeVar("T")


LEFT_OUT = "eval.left_out"
HELD_OUT = a_config(
    data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
    evaluation={"every_versions": 0, "max_tokens": 50},
    checkpoint={"every_steps": 1},
)
SAMPLED = a_config(
    data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
    evaluation={"every_versions": 0, "samples": 3, "temperature": 1.0},
)


def a_cluster(config: Config | None = None, *, num_held_out: int = 0) -> Cluster:
    return Cluster(config or a_config(), num_held_out=num_held_out)


def heard(node: Node, kind: type[T]) -> list[T]:
    return [message for message in node.inbox if isinstance(message, kind)]


def of(cluster: Cluster, kind: type[T]) -> list[T]:
    """Records of one kind, committed or not."""
    return [record for record in [*cluster.records, *cluster.uncommitted] if isinstance(record, kind)]


def overheard(cluster: Cluster) -> list[OutgoingMessage]:
    """List that grows with every message the broker sends from now on."""
    sent: list[OutgoingMessage] = []
    outbox, drain = cluster.scheduler.out, cluster.scheduler.out.drain

    def listening() -> tuple[list[OutgoingMessage], list[AnyRecord], list[Event]]:
        out = drain()
        sent.extend(out[0])
        return out

    outbox.drain = listening  # type: ignore[method-assign]
    return sent


def events(cluster: Cluster, kind: str) -> list[Event]:
    return [event for event in cluster.events if event.kind == kind]


def publish(cluster: Cluster) -> None:
    cluster.exchange()
    while any(getattr(node, "transfers", None) for node in cluster.nodes.values()):
        for node in cluster.nodes.values():
            if isinstance(node, Rollout | Trainer) and node.transfers:
                node.transferred()
                if isinstance(node, Rollout) and not node.is_held:
                    node.swap()
        cluster.exchange()


def finish_all(cluster: Cluster, node: Rollout) -> None:
    """A rollout finishes all its trajectories, and they are rewarded."""
    for unit in list(node.running):
        node.finish(unit)
    cluster.exchange()
    judge(cluster)


def judge(cluster: Cluster) -> None:
    cluster.exchange()
    for node in [node for node in cluster.nodes.values() if isinstance(node, Reward)]:
        while node.in_hand:
            node.judge()
            cluster.exchange()


def a_published(
    config: Config | None = None, *, rollouts: int = 1, num_held_out: int = 0, capacity: int = 4
) -> Cluster:
    cluster = a_cluster(config, num_held_out=num_held_out)
    for name in "abc"[:rollouts]:
        cluster.start_rollout(name, capacity)
    cluster.start_reward("r")
    cluster.start_trainer()
    publish(cluster)
    return cluster


def rollouts(cluster: Cluster) -> list[Rollout]:
    return [node for node in cluster.nodes.values() if isinstance(node, Rollout)]


def trainer(cluster: Cluster) -> Trainer:
    return next(node for node in cluster.nodes.values() if isinstance(node, Trainer))


# ── a whole life ────────────────────────────────────────────────────────────────────────────


def test_a_group_lives_from_its_lease_to_the_step_that_retires_it() -> None:
    cluster = a_published(a_config(run={"steps": 1}))
    (node,) = rollouts(cluster)
    assert set(node.running) == {Unit(0, 0), Unit(0, 1), Unit(1, 0), Unit(1, 1)}

    finish_all(cluster, node)
    batch = trainer(cluster).batches[0]
    assert [(s.unit, s.reward) for s in batch.trajectories] == [(Unit(g, i), 1.0) for g in (0, 1) for i in (0, 1)]

    trainer(cluster).train()
    publish(cluster)
    assert cluster.scheduler.is_finished
    kinds = [type(record) for record in cluster.records]
    assert kinds == [VersionLive, Admitted, Admitted, *[Result] * 4, *[Rewarded] * 4, Taken, Committed, VersionLive]
    scheduler = cluster.scheduler
    assert (scheduler.window.num_open, len(scheduler.dispatcher.leases), len(scheduler.grading)) == (0, 0, 0)


def test_a_lease_says_how_to_sample_with_a_seed_of_its_own() -> None:
    cluster = a_published(a_config(run={"steps": 4, "seed": 3}, sampling={"temperature": 0.7}), capacity=0)
    (node,) = rollouts(cluster)
    cluster.scheduler.handle(node.peer, Offer(4), 0.0)
    leases = [out.message for out in cluster.scheduler.out.drain()[0] if isinstance(out.message, Lease)]

    assert [(lease.group_id, lease.indices, lease.seed) for lease in leases] == [
        (0, [0, 1], sampling_seed(3, 0, 2)),
        (1, [0, 1], sampling_seed(3, 1, 2)),
    ]
    assert sampling_seed(3, 1, 2) == sampling_seed(3, 0, 2) + 2
    assert {lease.sampling.temperature for lease in leases} == {0.7}


def test_nobody_is_leased_anything_before_the_first_weights_are_live() -> None:
    cluster = a_cluster()
    node = cluster.start_rollout("a")
    cluster.exchange()
    cluster.start_trainer()
    cluster.exchange()

    assert not node.running
    assert cluster.scheduler.window.num_admitted == 0


def test_synchronous_means_nothing_is_admitted_before_the_weights_of_the_last_step_are_live() -> None:
    cluster = a_published(a_config(schedule={"staleness": 0.0}), capacity=100)
    (node,) = rollouts(cluster)
    finish_all(cluster, node)
    trainer(cluster).train()
    cluster.exchange()
    assert len(of(cluster, Admitted)) == 2
    assert not node.running

    publish(cluster)

    assert [record.policy_version for record in of(cluster, Admitted)] == [0, 0, 1, 1]
    assert set(node.running) == {Unit(g, i) for g in (2, 3) for i in (0, 1)}


def test_no_more_groups_are_admitted_than_the_run_needs() -> None:
    cluster = a_published(a_config(run={"steps": 1}, schedule={"staleness": 5.0}), capacity=100)

    assert len(of(cluster, Admitted)) == 2


# ── what is durable first ───────────────────────────────────────────────────────────────────


def test_settled_batch_and_trim_and_nothing_else_wait_for_the_ledger() -> None:
    cluster = a_published(HELD_OUT, num_held_out=2)
    sent = overheard(cluster)
    cluster.settle()

    assert cluster.scheduler.is_finished
    waited = {type(outgoing.message) for outgoing in sent if outgoing.once_durable}
    went = {type(outgoing.message) for outgoing in sent if not outgoing.once_durable}
    assert waited == {Settled, Batch, Trim}
    assert went == {Lease, Grade, Hold, Release, Transfer, Published, Evaluating, Evaluated}


def test_a_trainer_hears_of_each_evaluation_and_its_result_even_if_it_joins_later() -> None:
    cluster = a_published(HELD_OUT, num_held_out=2)
    sent = overheard(cluster)
    cluster.settle()
    first = next(node for node in cluster.nodes.values() if isinstance(node, Trainer))
    later = cluster.start_trainer()
    cluster.exchange()

    def said(peer: str) -> list[object]:
        return [one.message for one in sent if one.peer == peer and isinstance(one.message, Evaluating | Evaluated)]

    results = cluster.scheduler.evaluation.results
    assert said(first.peer) == [results[0], Evaluating(4), results[1]], "version 0 was started before"
    assert said(later.peer) == results


def test_a_result_is_settled_with_its_record() -> None:
    cluster = a_published()
    (node,) = rollouts(cluster)
    lease_id, _ = node.running[Unit(0, 0)]
    node.finish(Unit(0, 0))
    cluster.store()

    assert [type(record) for record in cluster.uncommitted] == [Result]
    assert [outgoing.message for outgoing in cluster.unsent] == [Settled([Leased(Unit(0, 0), lease_id)])]
    assert not heard(node, Settled)
    cluster.commit()
    assert heard(node, Settled) == [Settled([Leased(Unit(0, 0), lease_id)])]


def test_a_batch_asked_for_twice_is_the_same_batch_and_is_taken_once() -> None:
    cluster = a_published()
    finish_all(cluster, rollouts(cluster)[0])
    first = trainer(cluster).batches.pop(0)

    trainer(cluster).say(Take(0))
    cluster.exchange()

    assert trainer(cluster).batches[0] == first
    assert len(of(cluster, Taken)) == 1


# ── loss ────────────────────────────────────────────────────────────────────────────────────


def test_after_a_loss_only_the_missing_indices_are_leased_again_and_before_fresh_groups() -> None:
    cluster = a_published(rollouts=2)
    a, b = rollouts(cluster)
    assert set(a.running) == {Unit(0, 0), Unit(0, 1), Unit(2, 0), Unit(2, 1)}, "in turn, most credits first"
    a.finish(Unit(0, 1))
    cluster.exchange()
    judge(cluster)

    cluster.kill(a)
    assert [(r.unit, r.cause) for r in of(cluster, Reissued)] == [
        (unit, "node_lost") for unit in (Unit(0, 0), Unit(2, 0), Unit(2, 1))
    ]
    finish_all(cluster, b)

    assert list(b.running) == [Unit(0, 0), Unit(2, 0), Unit(2, 1)], "the oldest first, then the window is full"
    finish_all(cluster, b)
    assert [s.unit for s in trainer(cluster).batches[0].trajectories] == [Unit(g, i) for g in (0, 1) for i in (0, 1)]


def test_a_late_result_of_a_lost_lease_counts_and_the_second_one_is_a_settled_duplicate() -> None:
    cluster = a_published(rollouts=2, capacity=8)
    a, b = rollouts(cluster)
    a.finish(Unit(0, 0))
    late = cluster.spool.pop()
    cluster.kill(a)
    cluster.exchange()
    assert Unit(0, 0) in b.running

    cluster.spool.append(late)
    cluster.exchange()
    b.finish(Unit(0, 0))
    cluster.exchange()

    assert [(r.unit, r.lease_id) for r in of(cluster, Result)] == [(Unit(0, 0), late.items[0].lease_id)]
    assert [r.unit for r in of(cluster, Duplicate)] == [Unit(0, 0)]
    assert not b.unsettled, "a duplicate is settled too"


def test_a_unit_whose_late_result_arrives_in_time_is_not_leased_again() -> None:
    cluster = a_published(capacity=2)
    (a,) = rollouts(cluster)
    for unit in (Unit(0, 0), Unit(0, 1)):
        a.finish(unit)
    late = [cluster.spool.pop(), cluster.spool.pop()]
    cluster.kill(a)

    cluster.spool += late
    cluster.exchange()
    cluster.start_rollout("b", capacity=2)
    publish(cluster)

    assert list(rollouts(cluster)[0].running) == [Unit(1, 0), Unit(1, 1)]


def test_an_overdue_lease_is_given_to_somebody_else() -> None:
    cluster = a_published(a_config(schedule={"lease_s": 1.5}), capacity=2)
    (a,) = rollouts(cluster)
    b = cluster.start_rollout("b", capacity=2)
    publish(cluster)
    held = set(a.running)

    cluster.tick(1.5, silent=[a.peer])

    assert [event.fields["node"] for event in events(cluster, "lease.expired")] == [a.peer]
    assert {r.unit for r in of(cluster, Reissued) if r.cause == "expired"} == held
    finish_all(cluster, b)
    assert set(b.running) == held


def test_a_form_of_replies_that_nothing_enforces_is_told_once_in_a_run() -> None:
    cluster = a_published(capacity=2)
    both = [*rollouts(cluster), cluster.start_rollout("b", capacity=2)]
    for _ in range(2):
        cluster.tick(beats={one.peer: Beat(unenforced=["response_format", "strict"]) for one in both})
    told = [event.fields["field"] for event in events(cluster, "gateway.not_enforced")]
    assert sorted(told) == ["response_format", "strict"]


def test_the_only_reward_node_that_beats_and_grades_nothing_is_told_of_once() -> None:
    cluster = a_published(capacity=2)
    (a,) = rollouts(cluster)
    (judge,) = (node for node in cluster.nodes.values() if node.role == "reward")
    for unit in list(a.running):
        a.finish(unit)
    cluster.exchange()
    assert isinstance(judge, Reward)
    assert len(judge.in_hand) == 2
    for _ in range(6):
        cluster.tick(300.0)

    (told,) = events(cluster, "grading.overdue")
    assert (told.fields["node"], told.fields["trajectories"]) == ("r", 2)
    assert "restart it, or add one" in sentence(told.kind, told.fields)


def test_a_quiet_node_is_noticed_and_given_nothing_new_until_it_is_heard() -> None:
    cluster = a_published(capacity=2)
    cluster.scheduler.training.trainer_left()  # Nobody waits for a batch.
    b = cluster.start_rollout("b", capacity=2)
    cluster.exchange()

    cluster.tick(2.1, silent=[b.peer])
    publish(cluster)  # It has the weights, and says so.
    (quiet,) = events(cluster, "node.quiet")
    assert quiet.fields == {"node": "b", "role": "rollout", "seconds": 2.1}
    assert [event.fields["node"] for event in events(cluster, "node.heard")] == ["b"]
    assert b.running

    cluster.tick(2.1, silent=[b.peer])
    a = rollouts(cluster)[0]
    for unit in list(a.running):
        a.finish(unit)
    cluster.tick(0.25, silent=[b.peer])
    assert len(events(cluster, "node.quiet")) == 2
    assert not events(cluster, "node.lost")
    assert not of(cluster, Reissued), "what it has stays its own"


def test_while_the_trainer_waits_others_sample_what_a_silent_node_holds_and_it_gets_back_the_rest() -> None:
    cluster = a_published(capacity=4)
    silent, other = rollouts(cluster)[0], cluster.start_rollout("b", capacity=2)
    publish(cluster)
    held, others = set(silent.running), set(other.running)
    assert cluster.scheduler.training.awaited_step is not None

    cluster.tick(2.1, silent=[silent.peer])
    for unit in others:
        other.finish(unit)
    cluster.exchange()

    assert {record.unit for record in of(cluster, Reissued) if record.cause == "silent"} == held
    taken_over = set(other.running) & held
    assert taken_over
    assert not events(cluster, "node.lost")
    finish_all(cluster, silent)
    finish_all(cluster, other)
    results = [record.unit for record in of(cluster, Result)]
    assert held | others <= set(results)
    assert len(results) == len(set(results)), "the first result counts"


def test_what_the_only_rollout_holds_stays_its_own_however_silent_it_is() -> None:
    cluster = a_published(capacity=4)
    (silent,) = rollouts(cluster)
    cluster.tick(2.1, silent=[silent.peer])
    assert events(cluster, "node.quiet")
    assert not of(cluster, Reissued)


def test_what_a_rollout_without_progress_holds_is_sampled_by_others_and_it_gets_back_the_rest() -> None:
    cluster = a_published(capacity=4)
    stuck, other = rollouts(cluster)[0], cluster.start_rollout("b", capacity=2)
    publish(cluster)
    cluster.scheduler.training.trainer_left()  # Nobody waits for a batch.
    held = set(stuck.running)
    standing = {stuck.peer: Beat(doing="sampling", progress=5)}

    for _ in range(90):
        cluster.tick(0.25, beats=standing)
    (stalled,) = events(cluster, "node.stalled")
    assert stalled.fields["node"] == stuck.name
    assert stalled.fields["cause"] == "sampling for 20 s without a token, and it has computed nothing for 20 s"
    for unit in list(other.running):
        other.finish(unit)
    cluster.exchange()
    assert {record.unit for record in of(cluster, Reissued) if record.cause == "stalled"} == held
    assert set(other.running) & held
    assert not [*events(cluster, "node.quiet"), *events(cluster, "node.lost"), *events(cluster, "lease.expired")]

    cluster.tick(0.25, beats={stuck.peer: Beat(doing="sampling", progress=6)})
    assert [event.fields["node"] for event in events(cluster, "node.moving")] == [stuck.name]
    finish_all(cluster, stuck)
    finish_all(cluster, other)
    results = [record.unit for record in of(cluster, Result)]
    assert held <= set(results)
    assert len(results) == len(set(results)), "the first result counts"


def test_what_the_only_rollout_holds_stays_its_own_however_long_it_stands_still() -> None:
    cluster = a_published(capacity=4)
    (stuck,) = rollouts(cluster)
    held = set(stuck.running)
    for _ in range(400):
        cluster.tick(1.0, beats={stuck.peer: Beat(doing="sampling", progress=5)})
    assert events(cluster, "node.stalled")
    assert set(stuck.running) == held
    assert not of(cluster, Reissued)


def test_an_evaluation_moves_on_from_a_node_that_makes_no_progress() -> None:
    cluster = a_published(HELD_OUT, rollouts=2, num_held_out=2)
    a, b = rollouts(cluster)
    assert a.is_held

    for _ in range(90):
        cluster.tick(0.25, beats={a.peer: Beat(doing="sampling", progress=1)})
    cluster.exchange()

    assert (a.is_held, b.is_held) == (False, True)
    cluster.settle()
    assert {result.num_prompts for result in cluster.scheduler.evaluation.results} == {2}


def test_a_transfer_with_a_silent_member_is_aborted_for_the_others_and_repeated_without_it() -> None:
    cluster = a_published()
    a, silent = rollouts(cluster)[0], cluster.start_rollout("b")
    publish(cluster)
    sent = overheard(cluster)
    trainer = next(node for node in cluster.nodes.values() if isinstance(node, Trainer))
    trainer.say(Publishing(1, 1))
    cluster.exchange()
    first = next(out.message for out in sent if isinstance(out.message, Transfer))

    cluster.tick(2.1, silent=[silent.peer])

    aborts = {out.peer: out.message for out in sent if isinstance(out.message, Abort)}
    assert aborts == dict.fromkeys((trainer.peer, a.peer, silent.peer), Abort(first.transfer_group, "b was silent"))
    again = [out.message for out in sent if isinstance(out.message, Transfer)][-1]
    assert [member.node for member in again.members] == ["trainer", "a"]
    assert again.transfer_group > first.transfer_group
    assert [event.fields["cause"] for event in events(cluster, "transfer.aborted")] == ["b was silent"]


def test_while_the_broker_itself_stood_still_nobody_was_silent_and_no_lease_ran_out() -> None:
    cluster = a_published(a_config(schedule={"lease_s": 5.0}), capacity=2)
    (a,) = rollouts(cluster)
    held = set(a.running)
    assert held

    cluster.now_s += 100.0
    cluster.scheduler.clock_jumped(100.0)
    cluster.tick(1.0, silent=[a.peer])

    assert set(a.running) == held
    assert not [*events(cluster, "node.quiet"), *events(cluster, "node.lost"), *events(cluster, "lease.expired")]
    (slept,) = events(cluster, "broker.slept")
    assert slept.fields["seconds"] == 100.0


def test_a_silent_rollout_is_lost_and_a_rollout_that_says_bye_has_left() -> None:
    cluster = a_published(rollouts=2)
    a, b = rollouts(cluster)
    a.say(Bye("told to stop"))
    cluster.exchange()
    cluster.tick(10.1, silent=[b.peer])

    (left,), (lost,) = events(cluster, "node.left"), events(cluster, "node.lost")
    assert (left.fields["node"], left.fields["cause"]) == ("a", "told to stop")
    assert (lost.fields["node"], lost.fields["cause"]) == ("b", "silent for 10 s")
    assert {r.cause for r in of(cluster, Reissued)} == {"node_left", "node_lost"}


def test_another_start_of_a_node_ends_the_one_before() -> None:
    cluster = a_published()
    (old,) = rollouts(cluster)
    cluster.start_rollout("a")
    publish(cluster)

    (lost,) = events(cluster, "node.lost")
    assert lost.fields["cause"] == "another process joined under its name"
    assert lost.fields["trajectories_reissued"] == len(of(cluster, Reissued)) == 4, "as an audit counts them"
    assert cluster.scheduler.nodes.get(old.peer) is None
    assert len(cluster.scheduler.dispatcher.leases) == 2


@pytest.mark.parametrize(
    ("incarnation", "host", "cause"),
    [
        ("2-b-8", "gpu1", "it was killed or restarted: the next process of its name joined, on the same host, gpu1"),
        ("2-b-8", "gpu2", "another process joined under its name, on gpu2; it was on gpu1"),
        ("2-b-8", "", "another process joined under its name"),
        ("2-a-7", "gpu1", "it joined again"),
    ],
)
def test_a_node_that_another_session_replaces_is_lost_to_what_the_hosts_and_processes_tell(
    incarnation: str, host: str, cause: str
) -> None:
    scheduler = a_scheduler(a_config())
    for started, machine in (("1-a-7", "gpu1"), (incarnation, host)):
        scheduler.joined(f"a.{started}", Hello(PROTOCOL, "rollout", "a", started, host=machine), 0.0)
    (lost,) = [event for event in scheduler.out.drain()[2] if event.kind == "node.lost"]
    assert lost.fields["cause"] == cause


def test_a_lost_reward_node_loses_no_rewards() -> None:
    cluster = a_published()
    for unit in list(rollouts(cluster)[0].running):
        rollouts(cluster)[0].finish(unit)
    cluster.exchange()
    (judge_,) = [node for node in cluster.nodes.values() if isinstance(node, Reward)]
    assert len(judge_.in_hand) == 4

    cluster.kill(judge_)
    cluster.start_reward("s")
    judge(cluster)

    assert len(of(cluster, Rewarded)) == 4


def test_a_draining_node_gets_no_more_leases() -> None:
    cluster = a_published(capacity=2)
    (node,) = rollouts(cluster)
    node.say(Draining())
    finish_all(cluster, node)

    assert not node.running


# ── failure ─────────────────────────────────────────────────────────────────────────────────


def test_a_failed_generation_is_retried_and_after_the_last_attempt_its_group_is_replaced() -> None:
    cluster = a_published(a_config(schedule={"max_attempts": 2, "staleness": 0.0}), capacity=4)
    (node,) = rollouts(cluster)
    node.fail(Unit(0, 1))
    cluster.exchange()
    assert Unit(0, 1) in node.running
    assert [(r.unit, r.cause) for r in of(cluster, Reissued)] == [(Unit(0, 1), "failed")]

    node.fail(Unit(0, 1))
    cluster.exchange()

    assert [(r.attempts, r.is_final) for r in of(cluster, FailedAttempt)] == [(1, False), (2, True)]
    assert [(r.group_id, r.reason) for r in of(cluster, Dropped)] == [(0, "rollout: out of memory")]
    assert set(node.running) == {Unit(g, i) for g in (1, 2) for i in (0, 1)}, "the other index was cancelled"
    assert [r.group_id for r in of(cluster, Admitted)] == [0, 1, 2]
    finish_all(cluster, node)
    assert {s.unit.group_id for s in trainer(cluster).batches[0].trajectories} == {1, 2}


def test_what_cannot_be_retried_is_given_up_at_once() -> None:
    cluster = a_published()
    (node,) = rollouts(cluster)
    lease_id, _ = node.running.pop(Unit(0, 0))
    node.say(Failed(Unit(0, 0), lease_id, "rollout", "the prompt has 900 tokens", False))
    cluster.exchange()

    assert [(r.attempts, r.is_final) for r in of(cluster, FailedAttempt)] == [(1, True)]
    assert [event.fields["reason"] for event in events(cluster, "group.dropped")] == [
        "rollout: the prompt has 900 tokens"
    ]


@pytest.mark.parametrize(
    ("is_filtered", "reason"), [(True, "overlong_prompt"), (False, "rollout: the prompt has 900 tokens")]
)
def test_a_prompt_that_is_too_long_makes_room_for_exactly_one_other(is_filtered: bool, reason: str) -> None:
    """Both indices fail and the group is dropped once; the dead letter names its row in either case."""
    cluster = a_published(a_config(data={"train": "train.jsonl", "filter_overlong_prompts": is_filtered}))
    (node,) = rollouts(cluster)
    admitted = len(of(cluster, Admitted))
    for index in (0, 1):
        lease_id, _ = node.running.pop(Unit(0, index))
        node.say(Failed(Unit(0, index), lease_id, "rollout", "the prompt has 900 tokens", False, is_overlong=True))
    cluster.exchange()

    assert [(r.group_id, r.reason) for r in of(cluster, Dropped)] == [(0, reason)]
    assert [(r.unit.group_id, r.is_final) for r in of(cluster, FailedAttempt)] == [(0, True)]
    assert len(of(cluster, Admitted)) == admitted + 1


def test_a_run_whose_every_generation_fails_ends_with_the_reason() -> None:
    cluster = a_published(a_config(schedule={"max_attempts": 1}))
    (node,) = rollouts(cluster)
    while not cluster.cause:
        node.fail(next(iter(node.running)))
        cluster.exchange()

    assert cluster.cause.endswith("none became complete; the last one because of rollout: out of memory")


def test_a_group_that_becomes_complete_forgives_the_drops_before_it() -> None:
    cluster = a_published(a_config(run={"steps": 60}, schedule={"max_attempts": 1}))
    (node,) = rollouts(cluster)
    while not cluster.is_over and len(of(cluster, Dropped)) <= LEAST_IN_A_ROW:
        if node.running:
            node.fail(max(node.running))
            cluster.exchange()
        finish_all(cluster, node)
        while trainer(cluster).next_step in trainer(cluster).batches:
            trainer(cluster).train()
            publish(cluster)

    assert len(of(cluster, Dropped)) > LEAST_IN_A_ROW
    assert not cluster.cause


def test_a_failure_of_a_lease_that_is_no_more_counts_for_nothing() -> None:
    cluster = a_published()
    cluster.scheduler.handle(rollouts(cluster)[0].peer, Failed(Unit(0, 0), 12345, "rollout", "too late", False), 0.0)

    assert not of(cluster, FailedAttempt)


def test_a_failed_grading_is_repeated_and_never_counts_as_zero() -> None:
    cluster = a_published(a_config(schedule={"max_attempts": 2}))
    (judge_,) = [node for node in cluster.nodes.values() if isinstance(node, Reward)]
    for unit in list(rollouts(cluster)[0].running):
        rollouts(cluster)[0].finish(unit)
    cluster.exchange()

    failed = judge_.in_hand[0].unit
    judge_.fail()
    cluster.exchange()
    assert [item.unit for item in judge_.in_hand].count(failed) == 1
    while judge_.in_hand[0].unit != failed:
        judge_.judge()
        cluster.exchange()
    judge_.fail()
    cluster.exchange()

    assert [(r.stage, r.is_final) for r in of(cluster, FailedAttempt)] == [("reward", False), ("reward", True)]
    assert [(r.group_id, r.num_tokens) for r in of(cluster, Dropped)] == [(0, 16)]
    assert failed not in {r.unit for r in of(cluster, Rewarded)}
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert failed.group_id not in {s.unit.group_id for _, s in trainer(cluster).consumed}


def with_one_failed_verdict(advantage: str = "grpo", group_size: int = 3, index: int = 0) -> Cluster:
    """A run whose first verdict, on this trajectory of group 0, fails for good."""
    schedule: dict[str, object] = {"group_size": group_size, "max_attempts": 1, "staleness": 0.0}
    cluster = a_published(a_config(algorithm={"advantage": advantage}, schedule=schedule), capacity=9)
    (node,) = rollouts(cluster)
    node.finish(Unit(0, index))
    cluster.exchange()
    judge_of(cluster).fail()
    cluster.exchange()
    return cluster


def test_a_verdict_that_fails_for_good_costs_its_trajectory_and_its_group_goes_on() -> None:
    cluster = with_one_failed_verdict()
    cluster.settle()

    assert cluster.scheduler.is_finished
    left_out = LeftOut(Unit(0, 0), "reward: the verifier raised", 8)
    assert (of(cluster, LeftOut), of(cluster, Dropped)) == ([left_out], [])
    trained = [scored.unit for scored in cluster.disk.batches[0].trajectories]
    assert trained == [Unit(0, 1), Unit(0, 2), *(Unit(1, index) for index in range(3))]
    (told,) = events(cluster, "trajectory.left_out")
    assert told.fields == {"group_id": 0, "index": 0, "reason": left_out.reason}
    sums = audit(cluster.records, cluster.config.schedule)
    assert (sums.problems, sums.trained, sums.left_out) == ([], 8, {left_out.reason: 1})
    assert (sums.tokens_trained, sums.tokens_thrown_away["left_out"]) == (23 * 8, 8)


def test_an_episode_whose_environment_fails_for_good_costs_its_trajectory_too() -> None:
    cluster = a_published(a_config(schedule={"group_size": 3, "max_attempts": 1}), capacity=9)
    (node,) = rollouts(cluster)
    lease_id, _ = node.running.pop(Unit(0, 2))
    node.say(Failed(Unit(0, 2), lease_id, "environment", "the shop is closed", False), Offer(10))
    cluster.settle()

    assert cluster.scheduler.is_finished
    assert [record.unit for record in of(cluster, LeftOut)] == [Unit(0, 2)]
    assert of(cluster, Dropped) == []


@pytest.mark.parametrize(
    ("advantage", "group_size", "index"),
    [("grpo", 2, 0), ("my.py:mine", 3, 0), ("remax", 3, 3), ("remax", 1, 0)],
    ids=["two are compared", "a custom estimator", "the greedy baseline", "the only one"],
)
def test_a_group_that_its_estimator_needs_whole_is_dropped(advantage: str, group_size: int, index: int) -> None:
    cluster = with_one_failed_verdict(advantage, group_size, index)
    assert ([record.group_id for record in of(cluster, Dropped)], of(cluster, LeftOut)) == ([0], [])


def test_a_trajectory_that_is_left_out_last_completes_its_group() -> None:
    cluster = a_published(a_config(schedule={"group_size": 3, "max_attempts": 1, "staleness": 0.0}), capacity=9)
    (node,) = rollouts(cluster)
    for index in (1, 2, 0):
        node.finish(Unit(0, index))
        cluster.exchange()
    judge_of(cluster).judge()
    judge_of(cluster).judge()
    judge_of(cluster).fail()
    cluster.exchange()
    assert cluster.scheduler.groups.train[0].is_complete
    assert len(cluster.scheduler.training.batches.complete) == 1


def test_a_broker_that_starts_again_goes_on_without_what_was_left_out() -> None:
    before = with_one_failed_verdict()
    before.commit()
    cluster = Cluster(before.config, before=before)
    group = cluster.scheduler.groups.train[0]
    assert [slot.state.value for slot in group.slots] == ["left out", "missing", "missing"]


@pytest.mark.parametrize("reward", [nan, inf, 1e308, -1e7])
def test_a_verdict_that_no_verifier_may_give_is_a_failed_attempt(reward: float) -> None:
    cluster = a_published()
    (node,) = rollouts(cluster)
    node.finish(Unit(0, 0))
    cluster.exchange()
    item = judge_of(cluster).in_hand.popleft()
    judge_of(cluster).say(Scored([ScoredItem(item.unit, reward, {}, item.lease_id)]))
    cluster.exchange()

    (attempt,) = of(cluster, FailedAttempt)
    assert (attempt.unit, attempt.stage, attempt.is_final) == (item.unit, "reward", False)
    assert "expected a finite number of at most 1e+06" in attempt.reason
    cluster.settle()
    assert cluster.scheduler.is_finished


def test_a_verdict_too_large_for_a_batch_fails_its_trajectory_alone() -> None:
    cluster = a_published(a_config(schedule={"max_attempts": 2}))
    (judge_,) = [node for node in cluster.nodes.values() if isinstance(node, Reward)]
    for unit in list(rollouts(cluster)[0].running):
        rollouts(cluster)[0].finish(unit)
    cluster.exchange()

    item = judge_.in_hand.popleft()
    metrics = {f"metric {number}": 1.0 for number in range(60)}
    cluster.scheduler._verdict_limits.max_bytes = 100
    judge_.say(Scored([ScoredItem(item.unit, 1.0, metrics, item.lease_id)]))
    cluster.exchange()

    (attempt,) = of(cluster, FailedAttempt)
    assert (attempt.unit, attempt.stage, attempt.is_final) == (item.unit, "reward", True)
    assert "bytes of metrics and answer, but at most 100 are allowed where a step has 4" in attempt.reason
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert item.unit.group_id not in {s.unit.group_id for _, s in trainer(cluster).consumed}


# ── a step at which the trainer fails ───────────────────────────────────────────────────────


def fail_at(cluster: Cluster, step: int, reason: str) -> None:
    """The trainer fails at a step, and another one starts."""
    failing = trainer(cluster)
    failing.say(StepFailed(step, reason), Bye(reason))
    cluster.exchange()
    if not cluster.cause:
        cluster.start_trainer()
        publish(cluster)


def test_a_trainer_that_fails_twice_at_one_step_for_one_reason_ends_the_run_with_it() -> None:
    cluster = a_published(capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    fail_at(cluster, 0, "ValueError: no tokens")
    assert not cluster.cause
    fail_at(cluster, 0, "ValueError: no tokens")
    assert cluster.cause.startswith("the trainer failed twice at step 1 for the same reason: ValueError: no tokens; ")
    assert [event.fields for event in events(cluster, "step.failed")] == [
        {"step": 0, "reason": "ValueError: no tokens"}
    ] * 2


def test_a_trainer_that_is_killed_is_started_again_as_often_as_it_is() -> None:
    cluster = a_published(capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    for _ in range(5):
        cluster.kill(trainer(cluster))
        cluster.start_trainer()
        publish(cluster)
    assert not cluster.cause


def test_a_step_that_was_done_between_two_failures_has_failed_once() -> None:
    cluster = a_published(a_config(checkpoint={"every_steps": 0}), capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    fail_at(cluster, 0, "ValueError: no tokens")
    trainer(cluster).train()
    cluster.exchange()
    fail_at(cluster, 0, "ValueError: no tokens")
    assert not cluster.cause


def test_the_batch_of_a_step_that_is_to_be_skipped_trains_nothing_and_is_accounted_for() -> None:
    cluster = a_published(a_config(run={"steps": 4, "skip_steps": [2]}))
    sent = overheard(cluster)
    cluster.settle()

    assert cluster.scheduler.is_finished
    reason = "run.skip_steps has step 2"
    assert [record.group_id for record in of(cluster, Untrained)] == [2, 3]
    batches = [out.message for out in sent if isinstance(out.message, Batch)]
    refused = [one.unit for batch in batches for one in batch.trajectories if one.refused == reason]
    assert refused == [Unit(2, 0), Unit(3, 0)], (
        "one of each group of the step, and so the trainer leaves out the groups"
    )
    sums = audit(cluster.records, cluster.config.schedule)
    assert (sums.problems, sums.untrained, sums.trained, sums.steps) == ([], {reason: 2}, 6, 4)


def test_a_step_that_is_skipped_once_more_after_a_restart_is_left_out_once() -> None:
    cluster = a_published(a_config(run={"steps": 4, "skip_steps": [1]}), capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    cluster.kill(trainer(cluster))
    cluster.start_trainer()
    cluster.settle()
    assert [record.group_id for record in of(cluster, Untrained)] == [0, 1]
    assert audit(cluster.records, cluster.config.schedule).problems == []


# ── damaged checkpoints ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("steps", "folder", "source"),
    [(2, "run/step_000002", "run/step_000002"), (0, "", "the beginning, because no checkpoint is intact")],
)
def test_a_damaged_checkpoint_is_told_and_the_one_that_the_run_goes_on_from(
    steps: int, folder: str, source: str
) -> None:
    cluster = a_published()
    cluster.scheduler.joined("operator.0", Hello(PROTOCOL, "supervisor", "operator", "0"), 0.0)
    cluster.scheduler.training.batches.next_step = 4  # The steps that it lost were taken.
    sent = overheard(cluster)
    damaged = [DamagedCheckpoint("run/step_000004", "run/step_000004/model.safetensors is missing")]
    trainer(cluster).say(Resumed(steps, folder, damaged))
    cluster.exchange()

    assert [event.fields for event in events(cluster, "trainer.resumed")] == [{"steps": steps, "path": folder}]
    assert [event.fields for event in events(cluster, "checkpoint.damaged")] == [
        {"path": "run/step_000004", "cause": damaged[0].cause}
    ]
    assert [out.message for out in sent if out.peer == "operator.0"] == [
        Notice(f"checkpoint run/step_000004 is damaged: {damaged[0].cause}"),
        Notice(f"the trainer goes on from {source}"),
    ]


def test_of_a_checkpoint_that_is_intact_the_screen_says_nothing() -> None:
    cluster = a_published()
    cluster.scheduler.joined("operator.0", Hello(PROTOCOL, "supervisor", "operator", "0"), 0.0)
    sent = overheard(cluster)
    trainer(cluster).say(Resumed(0, "run/step_000000"))
    cluster.exchange()
    assert [out for out in sent if out.peer == "operator.0"] == []


# ── damaged trajectories ────────────────────────────────────────────────────────────────────


def judge_of(cluster: Cluster) -> Reward:
    (found,) = [node for node in cluster.nodes.values() if isinstance(node, Reward)]
    return found


def test_a_damaged_payload_is_sampled_again_and_its_group_is_trained() -> None:
    cluster = a_published()
    (node,) = rollouts(cluster)
    node.finish(Unit(0, 0))
    cluster.exchange()
    judge_of(cluster).refuse()
    cluster.exchange()

    assert Unit(0, 0) in node.running
    assert [(r.stage, r.reason, r.is_final) for r in of(cluster, FailedAttempt)] == [("payload", DAMAGED, False)]
    assert [(r.unit, r.num_tokens) for r in of(cluster, Refused)] == [(Unit(0, 0), 8)]
    assert cluster.scheduler.failures.counts == {f"payload: {DAMAGED}": 1}
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert Unit(0, 0) in {s.unit for _, s in trainer(cluster).consumed}
    assert of(cluster, Dropped) == []
    assert [r.num_refused for r in of(cluster, Result) if r.unit == Unit(0, 0)] == [0, 1]


def test_a_unit_that_is_damaged_to_its_last_attempt_costs_its_group_with_the_reason() -> None:
    cluster = a_published(a_config(schedule={"max_attempts": 2}))
    (node,) = rollouts(cluster)
    for _ in range(2):
        node.finish(Unit(0, 0))
        cluster.exchange()
        judge_of(cluster).refuse()
        cluster.exchange()

    assert [(r.group_id, r.reason) for r in of(cluster, Dropped)] == [(0, f"payload: {DAMAGED}")]
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert audit(cluster.records, cluster.config.schedule).problems == []


def test_a_damaged_held_out_completion_is_sampled_again_and_then_left_out() -> None:
    config = a_config(
        data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
        evaluation={"every_versions": 0, "at_end": False},
        schedule={"max_attempts": 2},
    )
    cluster = a_published(config, num_held_out=1)
    (node,) = rollouts(cluster)
    held_out, judge_ = Unit(0, 0, "held_out"), judge_of(cluster)
    for _ in range(2):
        while held_out not in node.running:  # A training lease may have taken its credit.
            node.finish(next(iter(node.running)))
            cluster.exchange()
        node.finish(held_out)
        cluster.exchange()
        while judge_.in_hand[0].unit != held_out:
            judge_.judge()
            cluster.exchange()
        judge_.refuse()
        cluster.exchange()

    (result,) = cluster.scheduler.evaluation.results
    assert (result.num_prompts, result.metrics["failed"]) == (0, 1.0)
    cluster.settle()
    assert cluster.scheduler.is_finished


def test_what_the_trainer_refuses_is_recorded_once_however_often_it_says_so() -> None:
    cluster = a_published(a_config(checkpoint={"every_steps": 1}), capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    first = trainer(cluster)
    units = [first.damage(place) for place in (0, 1)]
    first.train()
    publish(cluster)
    cluster.kill(first)
    cluster.start_trainer()
    cluster.settle()

    assert cluster.scheduler.is_finished
    assert [(r.step, r.group_id, r.num_tokens) for r in of(cluster, Untrained)] == [(0, 0, 16)]
    assert [(r.unit, r.stage, r.is_final) for r in of(cluster, FailedAttempt)] == [
        (unit, "trainer", True) for unit in units
    ]
    assert [event.fields["group_id"] for event in events(cluster, "group.untrained")] == [0]
    assert cluster.scheduler.failures.total == len(units), "counted once, too"
    sums = audit(cluster.records, cluster.config.schedule)
    assert (sums.problems, sums.untrained, sums.trained, sums.steps) == ([], {"impossible log-prob": 1}, 7, 4)
    assert sums.tokens_thrown_away["untrained"] == 16


def test_groups_that_were_left_out_do_not_count_as_trained() -> None:
    cluster = a_published(capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    trainer(cluster).damage(0)
    trainer(cluster).train()
    cluster.exchange()
    training = cluster.scheduler.training
    assert [group.group_id for group in training.trained(0)] == [1]
    assert training.trained(7) == []


def test_refusals_of_units_that_the_step_did_not_take_are_ignored() -> None:
    cluster = a_published(capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    strange = [Unit(9, 0), Unit(0, 2), Unit(0, -1), Unit(0, 0, "held_out")]
    stepped = Stepped(0, 0, {}, [Refusal(unit, DAMAGED) for unit in strange])
    cluster.scheduler.handle(trainer(cluster).peer, stepped, 0.0)
    cluster.scheduler.handle(trainer(cluster).peer, replace(stepped, step=3), 0.0)
    assert cluster.scheduler.out.drain()[1] == []


def test_a_grade_has_the_vocabulary_of_the_trainer_and_the_newest_version_that_was_offered() -> None:
    cluster = a_published()
    (node,) = rollouts(cluster)
    cluster.scheduler.handle(node.peer, Ready("plan", 1, 90), 0.0)
    cluster.scheduler.handle(trainer(cluster).peer, Ready("plan", 1, 100), 0.0)
    cluster.scheduler.handle(node.peer, Ready("plan", 1, 80), 0.0)
    sent = overheard(cluster)
    node.finish(Unit(0, 0))
    cluster.exchange()
    (grade,) = [out.message for out in sent if isinstance(out.message, Grade)]
    assert grade.limits == TrajectoryLimits(100, 128, 512, 0, max_turns=0, seats=1)


def test_failures_are_told_to_supervisors_by_cause_though_no_step_is_made() -> None:
    cluster = a_published(a_config(schedule={"max_attempts": 9}))
    said = overheard(cluster)
    (node,) = rollouts(cluster)
    for name in ("early", "late"):
        hello = Hello(PROTOCOL, "supervisor", name, "0")
        if name == "early":
            cluster.scheduler.joined("early.0", hello, cluster.now_s)
        for _ in range(2):
            node.fail(Unit(0, 1))
            cluster.exchange()
        cluster.tick(1.5)
        if name == "late":
            cluster.scheduler.joined("late.0", hello, cluster.now_s)
    cluster.tick(1.5)

    told = [(out.peer, out.message.counts) for out in said if isinstance(out.message, Failures)]
    cause = "rollout: out of memory"
    assert told == [("early.0", {cause: 2}), ("early.0", {cause: 4}), ("late.0", {cause: 4})]
    assert [event.fields for event in events(cluster, "units.failed")] == [
        {"stage": "rollout", "cause": "out of memory", "count": 2, "of": 2}
    ]


def test_a_reward_that_comes_twice_counts_once() -> None:
    cluster = a_published()
    finish_all(cluster, rollouts(cluster)[0])
    before = len(of(cluster, Rewarded))
    (judge_,) = [node for node in cluster.nodes.values() if isinstance(node, Reward)]

    verdict = of(cluster, Rewarded)[0]
    judge_.say(Scored([ScoredItem(verdict.unit, 0.0)]))
    cluster.exchange()

    assert len(of(cluster, Rewarded)) == before


def test_five_broken_transfers_end_the_run_with_the_cause() -> None:
    cluster = a_cluster()
    cluster.start_trainer()
    node = cluster.start_rollout("a")
    cluster.exchange()
    while not cluster.cause:
        trainer(cluster).transferred()
        node.faults()[0][1]()
        cluster.exchange()

    assert cluster.cause.startswith("version 0 could not be published in 5 tries: a: the peer closed the connection")
    assert len(events(cluster, "transfer.failed")) == 5


def test_a_member_that_does_not_report_is_lost_and_the_version_goes_to_the_others() -> None:
    cluster = a_cluster()
    late, well = cluster.start_rollout("late"), cluster.start_rollout("well")
    cluster.start_trainer()
    cluster.exchange()
    trainer(cluster).transferred()
    well.transferred()
    well.swap()
    cluster.exchange()

    cluster.tick(60.0)

    (lost,) = events(cluster, "node.lost")
    assert (lost.fields["node"], lost.fields["cause"]) == ("late", "did not finish a weight transfer within 60 s")
    del cluster.nodes[late.peer]
    publish(cluster)
    assert cluster.scheduler.transfers.live_version == 0


def test_a_joiner_that_can_never_receive_is_lost_and_the_run_goes_on() -> None:
    cluster = a_published()
    joiner = cluster.start_rollout("joiner")
    cluster.exchange()
    while joiner.transfers:
        trainer(cluster).faults()[0][1]()
        joiner.faults()[0][1]()
        cluster.exchange()
    cluster.tick()

    (lost,) = events(cluster, "node.lost")
    assert (lost.fields["node"], lost.fields["cause"]) == ("joiner", "could not receive the weights in 5 tries")
    del cluster.nodes[joiner.peer]
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert not cluster.cause


# ── the trainer ─────────────────────────────────────────────────────────────────────────────


def test_a_run_whose_trainer_leaves_waits_and_the_next_one_goes_on_with_the_same_batches() -> None:
    cluster = a_published(a_config(checkpoint={"every_steps": 1}), capacity=8)
    finish_all(cluster, rollouts(cluster)[0])
    first = trainer(cluster)
    first.train()
    publish(cluster)
    finish_all(cluster, rollouts(cluster)[0])
    expected = first.batches[1]
    first.say(Bye("OutOfMemoryError: 3 GiB missing"))
    cluster.exchange()
    for _ in range(11):
        cluster.tick(6.0)
    assert [event.fields["cause"] for event in events(cluster, "node.left")] == ["OutOfMemoryError: 3 GiB missing"]
    assert waiting(cluster) == [("trainer", "4 groups in the window wait")]

    cluster.start_trainer()
    cluster.exchange()

    assert trainer(cluster).batches == {1: expected}
    assert len([record for record in of(cluster, Taken) if record.step == 1]) == 1
    cluster.settle()
    assert cluster.scheduler.is_finished
    assert not cluster.cause


def test_a_silent_trainer_is_lost_and_its_transfer_breaks() -> None:
    cluster = a_cluster()
    cluster.start_trainer()
    cluster.start_reward("r")
    node = cluster.start_rollout("a")
    cluster.exchange()
    cluster.tick(10.1, silent=[trainer(cluster).peer])
    del cluster.nodes[trainer(cluster).peer]
    node.transferred()
    cluster.exchange()

    assert [event.fields["cause"] for event in events(cluster, "node.lost")] == ["silent for 10 s"]
    assert cluster.scheduler.transfers.ongoing is None
    assert cluster.scheduler.transfers.staged_version == -1, "what it had ready is gone"
    cluster.start_trainer()
    cluster.settle()
    assert cluster.scheduler.is_finished


def test_a_trainer_on_its_way_back_to_the_live_version_is_answered_at_once() -> None:
    cluster = a_published(a_config(checkpoint={"every_steps": 0}), capacity=8)
    (node,) = rollouts(cluster)
    while trainer(cluster).policy_version < 2:
        finish_all(cluster, node)
        trainer(cluster).train()
        publish(cluster)
    cluster.kill(trainer(cluster))
    joiner = cluster.start_rollout("b")
    cluster.exchange()
    again = cluster.start_trainer()
    cluster.exchange()
    assert (again.policy_version, again.live_version) == (0, 2)

    again.train()
    cluster.exchange()
    assert not again.transfers
    assert not joiner.transfers
    again.train()
    cluster.exchange()

    assert [transfer.policy_version for transfer in joiner.transfers] == [2]
    assert [record.policy_version for record in of(cluster, VersionLive)] == [0, 1, 2]


def test_a_trainer_that_begins_before_the_last_two_checkpoints_ends_the_run_with_the_reason() -> None:
    cluster = a_published(a_config(run={"steps": 3}, checkpoint={"every_steps": 1}))
    cluster.settle(lambda actions: actions[0 if cluster.scheduler.training.committed_step < 1 else -1])
    cluster.kill(trainer(cluster))
    cluster.disk.checkpoints[:] = [0]
    cluster.start_trainer()
    cluster.exchange()

    assert cluster.cause.startswith("the trainer asks for step 1, whose payloads are gone")


def test_a_trainer_may_leave_when_all_is_done() -> None:
    cluster = a_published()
    cluster.settle()
    assert cluster.scheduler.is_finished

    trainer(cluster).say(Bye("done"))
    cluster.exchange()

    assert not cluster.cause
    assert len(events(cluster, "node.left")) == 1


def test_what_the_checkpoint_before_the_newest_contains_is_forgotten_and_its_payloads_may_go() -> None:
    cluster = a_published(a_config(checkpoint={"every_steps": 1}))
    sent = overheard(cluster)
    cluster.settle()

    kept = {record.group_id for record in of(cluster, Admitted)} - set(range(6))
    assert set(cluster.scheduler.groups.train) == kept, "of the steps since the checkpoint before the newest"
    assert [step for step in range(4) if cluster.scheduler.training.batches.taken(step)] == [3]
    assert {outgoing.peer for outgoing in sent if isinstance(outgoing.message, Trim)} == {SPOOL}


def test_payloads_still_to_be_graded_stay() -> None:
    cluster = a_published(HELD_OUT, num_held_out=1, capacity=8)
    (node,) = rollouts(cluster)
    (judge_,) = [node for node in cluster.nodes.values() if isinstance(node, Reward)]
    sent = overheard(cluster)
    while cluster.scheduler.training.committed_step < 1:
        for unit in sorted(node.running, key=lambda unit: unit.split):
            node.finish(unit)
        for stored in cluster.spool:
            (item,) = stored.items
            segment = 2 if item.unit.split == "held_out" else 5
            stored.items[0] = replace(item, ref=replace(item.ref, segment=segment))
        cluster.exchange()
        while any(item.unit.split == "train" for item in judge_.in_hand):
            judge_.in_hand.rotate(-(judge_.in_hand[0].unit.split == "held_out"))
            judge_.judge()
            cluster.exchange()
        trainer(cluster).train()
        publish(cluster)

    assert [outgoing.message for outgoing in sent if isinstance(outgoing.message, Trim)] == [Trim(2)]


# ── evaluation ──────────────────────────────────────────────────────────────────────────────


def test_an_evaluation_holds_one_node_at_its_version_and_releases_it() -> None:
    cluster = a_published(HELD_OUT, rollouts=2, num_held_out=2)
    a, b = rollouts(cluster)
    assert (a.is_held, b.is_held) == (True, False)
    asked = [unit for unit in a.running if unit.split == "held_out"]
    assert asked == [Unit(0, 0, "held_out"), Unit(1, 0, "held_out")]

    while a.is_held:
        finish_all(cluster, a)

    (finished,) = events(cluster, "eval.finished")
    assert (finished.fields["policy_version"], finished.fields["accuracy"]) == (0, 1.0)
    assert cluster.scheduler.evaluation.is_finished


def test_held_out_prompts_are_sampled_greedily_and_with_their_own_length() -> None:
    cluster = a_cluster(HELD_OUT, num_held_out=1)
    cluster.start_trainer()
    node = cluster.start_rollout("a")
    leases: list[Lease] = []
    take = node.take
    node.take = lambda m: (leases.append(m) if isinstance(m, Lease) else None, take(m))[1]  # type: ignore[assignment,method-assign,func-returns-value]
    publish(cluster)

    held_out = [lease for lease in leases if lease.split == "held_out"]
    assert [(lease.sampling.temperature, lease.sampling.max_tokens) for lease in held_out] == [(0.0, 50)]


def test_a_held_out_prompt_is_leased_as_often_as_there_are_samples_within_the_credits() -> None:
    cluster = a_published(SAMPLED, num_held_out=2, capacity=4)
    (node,) = rollouts(cluster)
    asked = sorted(unit for unit in node.running if unit.split == "held_out")
    assert asked == [Unit(0, 0, "held_out"), Unit(0, 1, "held_out"), Unit(0, 2, "held_out"), Unit(1, 0, "held_out")]

    cluster.settle()

    assert [result.metrics["pass@3"] for result in cluster.scheduler.evaluation.results] == [1.0, 1.0]
    assert {result.num_prompts for result in cluster.scheduler.evaluation.results} == {2}


def test_a_held_out_completion_without_a_reward_leaves_the_others_of_its_prompt() -> None:
    config = a_config(
        data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
        evaluation={"every_versions": 0, "samples": 3, "temperature": 1.0, "at_end": False},
        schedule={"groups_per_step": 2, "group_size": 2, "max_attempts": 1},
    )
    cluster = a_published(config, num_held_out=1)
    (node,) = rollouts(cluster)
    for index in (1, 0, 2):
        node.finish(Unit(0, index, "held_out"))
        cluster.exchange()
    (judge_,) = (node for node in cluster.nodes.values() if isinstance(node, Reward))
    assert [item.unit.index for item in judge_.in_hand] == [1, 0, 2]
    judge_.fail()
    cluster.settle()

    (result,) = cluster.scheduler.evaluation.results
    assert (result.num_prompts, result.metrics["failed"], result.metrics["avg@3"]) == (1, 1.0, 1.0)


def train_beside_an_evaluation(cluster: Cluster) -> None:
    """A step is trained and published while the first of two rollouts keeps its held-out completions."""
    a, b = rollouts(cluster)
    while not trainer(cluster).batches:
        for unit in [unit for unit in a.running if unit.split == "train"]:
            a.finish(unit)
        finish_all(cluster, b)
    trainer(cluster).train()
    publish(cluster)


def test_weights_go_live_while_a_node_is_held() -> None:
    cluster = a_published(HELD_OUT, rollouts=2, num_held_out=1, capacity=8)
    a, b = rollouts(cluster)
    train_beside_an_evaluation(cluster)

    assert a.is_held
    assert cluster.scheduler.transfers.live_version == 1
    assert (a.policy_version, a.staged_version, b.policy_version) == (0, 1, 1)
    cluster.settle()
    assert [result.policy_version for result in cluster.scheduler.evaluation.results] == [0, 2 + 2]


def test_an_evaluation_that_nobody_had_time_for_is_an_event_that_names_it() -> None:
    often = a_config(data={"train": "train.jsonl", "held_out": "held_out.jsonl"}, evaluation={"every_versions": 1})
    cluster = a_published(often, rollouts=2, num_held_out=1, capacity=8)
    for _ in range(2):
        train_beside_an_evaluation(cluster)

    assert rollouts(cluster)[0].is_held
    left_out = [(event.fields["policy_version"], event.fields["newer_version"]) for event in events(cluster, LEFT_OUT)]
    assert left_out == [(1, 2)]
    assert "evaluate less often, or add a rollout" in events(cluster, LEFT_OUT)[0].fields["cause"]


def test_an_evaluation_that_a_restart_of_the_broker_cost_says_so() -> None:
    often = a_config(data={"train": "train.jsonl", "held_out": "held_out.jsonl"}, evaluation={"every_versions": 1})
    before = a_published(often, num_held_out=1, capacity=8)
    assert rollouts(before)[0].is_held
    before.commit()
    cluster = Cluster(often, num_held_out=1, before=before)
    cluster.start_rollout("a")
    ahead = cluster.start_trainer()
    ahead.outbox.remove(Publishing(0, 0))
    ahead.say(Publishing(1, 1))
    publish(cluster)
    cause = "the broker was started again before the evaluation had ended, and rollouts had v1 by then"
    assert events(cluster, LEFT_OUT)[0].fields == {"policy_version": 0, "newer_version": 1, "cause": cause}


def test_an_evaluation_whose_node_is_lost_goes_on_on_another() -> None:
    cluster = a_published(HELD_OUT, rollouts=2, num_held_out=2)
    a, b = rollouts(cluster)
    a.finish(Unit(0, 0, "held_out"))
    cluster.exchange()

    cluster.kill(a)
    cluster.exchange()

    assert [event.fields["policy_version"] for event in events(cluster, "eval.lost")] == [0]
    assert b.is_held
    cluster.settle()
    assert {result.num_prompts for result in cluster.scheduler.evaluation.results} == {2}


def test_no_evaluation_starts_during_a_transfer() -> None:
    cluster = a_published(HELD_OUT, rollouts=2, num_held_out=1)
    a, b = rollouts(cluster)
    trainer(cluster).say(Publishing(1, 1))
    cluster.exchange()
    b.transferred()
    b.swap()  # b decodes with version 1, and the broker does not know it yet

    cluster.kill(a)
    assert not b.is_held
    assert not heard(b, Hold)


def test_a_node_that_received_a_version_which_then_broke_for_others_is_not_held_at_the_one_before() -> None:
    cluster = a_published(HELD_OUT, rollouts=2, num_held_out=1)
    a, b = rollouts(cluster)
    trainer(cluster).say(Publishing(1, 1))
    cluster.exchange()
    trainer(cluster).transferred()
    b.transferred()
    b.swap()
    live = b.outbox.pop()  # on its way for long
    cluster.exchange()

    cluster.kill(a)  # its transfer breaks, and its evaluation is due again

    assert not heard(b, Hold)
    b.say(live)
    publish(cluster)
    assert b.is_held


def test_a_draining_node_is_not_held() -> None:
    cluster = a_cluster(HELD_OUT, num_held_out=1)
    draining, other = cluster.start_rollout("draining"), cluster.start_rollout("other")
    draining.say(Draining())
    cluster.start_trainer()
    publish(cluster)

    assert (draining.is_held, other.is_held) == (False, True)


def test_a_run_is_finished_only_with_its_last_evaluation() -> None:
    cluster = a_published(HELD_OUT, num_held_out=2)
    unfinished: list[int] = []

    def pick(actions: Sequence[Action]) -> Action:
        if cluster.scheduler.training.committed_step == 3 and not cluster.scheduler.is_finished:
            unfinished.append(cluster.scheduler.transfers.live_version)
        return actions[0]

    cluster.settle(pick)

    assert set(unfinished) == {3, 4}, "in a checkpoint, but not live; then live, but not measured"
    assert [result.policy_version for result in cluster.scheduler.evaluation.results] == [0, 4]


# ── waiting, and what is refused ────────────────────────────────────────────────────────────


def waiting(cluster: Cluster) -> list[tuple[str, str]]:
    return [(event.fields["role"], event.fields["cause"].partition(",")[0]) for event in events(cluster, "run.waiting")]


@pytest.mark.parametrize(
    ("role", "work"),
    [
        ("rollout", "the weights of version 0 wait"),
        ("reward", "4 trajectories wait"),
        ("trainer", "1 rollouts without weights wait"),
    ],
)
def test_work_without_a_node_is_reported_once_after_a_minute(role: str, work: str) -> None:
    cluster = a_cluster()
    if role != "trainer":
        cluster.start_trainer()
    if role != "rollout":
        cluster.start_rollout("a")
        publish(cluster)
    if role == "reward":
        for unit in list(rollouts(cluster)[0].running):
            rollouts(cluster)[0].finish(unit)
    cluster.exchange()
    for _ in range(1 + 60 // 6):
        assert not events(cluster, "run.waiting")
        cluster.tick(6.0)
    for _ in range(60):
        cluster.tick(6.0)

    assert waiting(cluster) == [(role, work)]


def test_leases_that_wait_for_a_rollout_are_counted() -> None:
    cluster = a_published()
    cluster.kill(rollouts(cluster)[0])
    for _ in range(11):
        cluster.tick(6.0)

    assert waiting(cluster) == [("rollout", "4 groups wait")]


def test_a_run_that_goes_on_waits_for_nobody() -> None:
    cluster = a_published()
    cluster.tick(61.0)
    cluster.settle()
    cluster.tick(61.0)

    assert waiting(cluster) == []


def test_messages_for_the_broker_actor_are_refused() -> None:
    cluster = a_published()
    with pytest.raises(BrokenInvariant, match="Bye is for BrokerActor"):
        cluster.scheduler.handle(rollouts(cluster)[0].peer, Bye("done"), 0.0)


def test_messages_of_unknown_peers_are_ignored() -> None:
    cluster = a_published()
    before = len(of(cluster, Result))
    rollouts(cluster)[0].finish(Unit(0, 0))
    cluster.scheduler.handle("stranger.0", cluster.spool.pop(), 0.0)

    assert len(of(cluster, Result)) == before
