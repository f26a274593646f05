"""Pause of sampling: what stops, what goes on, and who remembers it."""

from asyncrl.broker.absence import waits
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import SamplingPaused
from asyncrl.broker.status.status import run_status
from asyncrl.messages.session import Hello
from asyncrl.messages.supervisor import Paused
from asyncrl.messages.wire import PROTOCOL
from tests.broker.driver import Cluster, Node, Rollout, a_config
from tests.broker.test_scheduler import HELD_OUT, a_published, finish_all, heard, of, publish


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
    assert cluster.scheduler.pause.by == "alice"

    operator = cluster._start(Operator("supervisor-0"))
    cluster.scheduler.joined(operator.peer, Hello(PROTOCOL, "supervisor", "supervisor-0", "0"), 0.0)
    operator.outbox.clear()
    cluster.tick()
    cluster.commit()
    assert heard(operator, Paused) == [Paused(True, "alice")]

    pause(cluster, is_paused=False)
    assert not Cluster(before.config, before=cluster).scheduler.pause.is_set


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
