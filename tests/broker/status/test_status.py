"""Status of a run from the scheduler's books alone, at each stage of its groups."""

from asyncrl.broker.status.status import run_status
from asyncrl.messages.supervisor import NodeStatus, Status
from tests.broker.driver import Cluster, a_config
from tests.broker.test_scheduler import a_published, finish_all, judge, publish


def status(cluster: Cluster) -> Status:
    return run_status(cluster.scheduler, cluster.now_s, run="run")


def of(cluster: Cluster, name: str) -> NodeStatus:
    return next(node for node in status(cluster).nodes if node.node == name)


def test_a_fresh_run_has_neither_version_nor_groups() -> None:
    told = status(Cluster(a_config()))
    assert (told.step, told.policy_version, told.open_groups, told.window) == (0, -1, 0, 4)
    assert told.groups == {"unleased": 0, "sampling": 0, "grading": 0, "complete": 0, "in batch": 0}
    assert [node.node for node in told.nodes] == ["spool"]


def test_every_open_group_is_in_exactly_one_state() -> None:
    cluster = a_published()
    a = next(node for node in cluster.nodes.values() if node.name == "a")
    assert status(cluster).groups == {"unleased": 2, "sampling": 2, "grading": 0, "complete": 0, "in batch": 0}

    for unit in list(a.running)[:2]:  # type: ignore[attr-defined]
        a.finish(unit)  # type: ignore[attr-defined]
    cluster.exchange()
    assert status(cluster).groups == {"unleased": 1, "sampling": 2, "grading": 1, "complete": 0, "in batch": 0}

    judge(cluster)
    finish_all(cluster, a)  # type: ignore[arg-type]
    told = status(cluster)
    assert told.open_groups == sum(told.groups.values()) == 4
    assert told.groups["in batch"] == 2


def test_leases_and_trajectories_in_hand_are_counted_for_each_node() -> None:
    cluster = a_published()
    rollout = of(cluster, "a")
    assert (rollout.state, rollout.policy_version, rollout.leases, rollout.trajectories) == ("working", 0, 2, 4)

    node = next(node for node in cluster.nodes.values() if node.name == "a")
    node.finish(next(iter(node.running)))  # type: ignore[attr-defined]
    cluster.exchange()
    reward = next(node for node in status(cluster).nodes if node.role == "reward")
    assert (reward.state, reward.trajectories) == ("working", 1)


def test_evaluations_are_told_without_those_that_measured_nothing() -> None:
    cluster = a_published()
    told = status(cluster)
    assert (told.accuracy, told.base_accuracy) == (None, None)


def test_the_rate_of_tokens_follows_the_beats_and_silence_is_measured() -> None:
    cluster = a_published()
    publish(cluster)
    cluster.tick(0.5)
    cluster.tick(1.5, silent=[node.peer for node in cluster.nodes.values() if node.name == "a"])
    assert of(cluster, "a").silent_s == 1.5
    assert of(cluster, "trainer").silent_s == 0.0
