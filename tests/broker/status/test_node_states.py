"""What each node does or waits for, in words."""

from asyncrl.broker.status.node_states import node_status
from asyncrl.broker.status.status import GROUP_STATES, run_status
from asyncrl.messages.session import Draining
from tests.broker.driver import Cluster, Reward, Rollout, a_config
from tests.broker.test_scheduler import a_published, finish_all, publish


def states(cluster: Cluster) -> dict[str, tuple[str, str]]:
    told = run_status(cluster.scheduler, cluster.now_s, run="run")
    return {node.node: (node.state, node.waits_for) for node in told.nodes}


def rollout(cluster: Cluster) -> Rollout:
    return next(node for node in cluster.nodes.values() if isinstance(node, Rollout))


def test_a_node_that_has_not_said_ready_loads_its_model() -> None:
    cluster = Cluster(a_config())
    node = cluster.start_rollout("a")
    cluster.hear(node)
    assert states(cluster)["a"] == ("loading", "")


def test_a_rollout_without_a_trainer_waits_for_its_first_weights() -> None:
    cluster = Cluster(a_config())
    cluster.start_rollout("a")
    cluster.exchange()
    assert states(cluster)["a"] == ("waiting", "its first weights")


def test_a_reward_node_without_work_waits_for_trajectories() -> None:
    assert states(a_published())["r"] == ("waiting", "trajectories")


def test_the_trainer_waits_for_the_groups_of_its_step_and_says_where_they_are() -> None:
    cluster = a_published()
    assert states(cluster)["trainer"] == ("waiting", "step 1: 0 of 2 groups complete, the rest is sampled")


def test_the_trainer_says_at_once_that_no_reward_node_is_connected() -> None:
    cluster = a_published()
    cluster.kill(next(node for node in cluster.nodes.values() if isinstance(node, Reward)))
    node = rollout(cluster)
    for unit in list(node.running):
        node.finish(unit)
    cluster.exchange()
    assert states(cluster)["trainer"] == (
        "waiting",
        "step 1: 0 of 2 groups complete, no reward node is connected",
    )


def test_the_trainer_says_at_once_that_no_rollout_is_connected() -> None:
    cluster = a_published()
    cluster.kill(rollout(cluster))
    assert states(cluster)["trainer"] == ("waiting", "step 1: 0 of 2 groups complete, no rollout is connected")


def test_a_step_that_waits_for_its_oldest_groups_says_what_becomes_of_them() -> None:
    cluster = a_published()
    groups = dict.fromkeys(GROUP_STATES, 0) | {"complete": 2, "sampling": 1}
    trainer = cluster.scheduler.nodes.trainer()
    assert trainer is not None
    told = node_status(cluster.scheduler, trainer, groups, 0, cluster.now_s)
    assert told.waits_for == "step 1 waits for its oldest groups, which are still sampled"
    told = node_status(cluster.scheduler, trainer, groups | {"sampling": 0, "grading": 1}, 0, cluster.now_s)
    assert told.waits_for == "step 1 waits for its oldest groups, which are still graded"


def test_a_rollout_that_ran_ahead_waits_for_the_trainer() -> None:
    cluster = a_published(capacity=8)
    finish_all(cluster, rollout(cluster))
    assert states(cluster)["a"] == ("waiting", "the trainer: the window of 4 groups is full")
    assert states(cluster)["trainer"] == ("working", "")


def test_a_rollout_waits_for_the_end_once_every_group_is_sampled() -> None:
    cluster = a_published(a_config(run={"steps": 2}), capacity=8)
    finish_all(cluster, rollout(cluster))
    assert states(cluster)["a"] == ("waiting", "the end: every group has been sampled or leased")


def test_a_rollout_without_credits_waits_for_a_slot() -> None:
    cluster = a_published(capacity=0)
    publish(cluster)
    assert states(cluster)["a"] == ("waiting", "a free slot: requests of its own users have all")


def test_a_rollout_with_too_few_credits_waits_for_slots_of_a_whole_group() -> None:
    cluster = a_published(capacity=1)
    assert states(cluster)["a"] == ("waiting", "free slots for a whole group")


def test_a_full_window_names_a_trainer_that_is_away_or_loads() -> None:
    cluster = a_published(capacity=8)
    finish_all(cluster, rollout(cluster))
    trainer = cluster.scheduler.nodes.trainer()
    assert trainer is not None
    trainer.is_ready = False
    assert states(cluster)["a"] == ("waiting", "the trainer, which is loading")
    cluster.scheduler.left(trainer.peer, "was killed by SIGKILL", cluster.now_s)
    assert states(cluster)["a"] == ("waiting", "the trainer, which is not connected")


def test_silence_and_departure_come_before_everything_else() -> None:
    cluster = a_published(rollouts=2)
    first, second = (node for node in cluster.nodes.values() if isinstance(node, Rollout))
    first.say(Draining())
    cluster.exchange()
    cluster.tick(5.0, silent=[second.peer])
    found = states(cluster)
    assert (found[first.name][0], found[second.name][0]) == ("leaving", "silent")


def test_after_a_restart_of_the_broker_the_rollouts_of_its_earlier_life_are_awaited() -> None:
    before = a_published(rollouts=2)
    before.commit()
    cluster = Cluster(before.config, before=before)
    cluster.scheduler.dispatcher.expect({"b"})
    node = cluster.start_rollout("a", capacity=8)
    cluster.start_trainer()
    publish(cluster)
    assert node.policy_version == 0
    assert states(cluster)["a"] == ("waiting", "b, to report what they sample since before the broker's restart")


def test_waiting_is_no_state_without_a_reason() -> None:
    cluster = a_published()
    told = run_status(cluster.scheduler, cluster.now_s, run="run")
    assert all(bool(node.waits_for) == (node.state == "waiting") for node in told.nodes)
