"""A long silence is told about, and says what the run does."""

import pytest
from msgspec.structs import replace

from asyncrl.broker.status import LongSilence, RestartBook, run_status, sentence
from asyncrl.messages.codec import Envelope, encode
from asyncrl.messages.session import Beat, Draining
from asyncrl.messages.supervisor import AbsentNode, Evaluated, Exited, NodeStatus, Status
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.wire import CODEC
from asyncrl.records.node_states import NodeRecord, NodeStates
from tests.broker.driver import Cluster, Reward, Rollout, a_config
from tests.broker.test_scheduler import HELD_OUT, a_published, finish_all, judge, publish, rollouts, trainer


def told(silence: LongSilence, mark: int, start_s: int, end_s: int) -> list[float]:
    return [seconds for now_s in range(start_s, end_s) if (seconds := silence.due(mark, now_s))]


def test_a_silence_is_told_about_after_doubling_times() -> None:
    silence = LongSilence(0.0)
    assert told(silence, 0, 0, 100) == [15, 30, 60]


def test_one_is_long_if_it_is_longer_than_those_before() -> None:
    silence = LongSilence(0.0)
    for step in range(5):  # a step every 30 s
        told(silence, step, 30 * step, 30 * step + 30)
    assert told(silence, 5, 150, 400) == [90, 180]


def after(cluster: Cluster, seconds: float) -> str:
    (rollout,) = rollouts(cluster)
    for _ in range(int(4 * seconds)):
        cluster.tick(0.25, beats={rollout.peer: Beat(doing="sampling", progress=3)})
    return sentence(cluster.scheduler, seconds, cluster.now_s)


def test_the_sentence_names_what_the_trainer_waits_for_and_what_stands_still() -> None:
    assert after(a_published(), 15) == (
        "no news for 15 s: trainer is waiting (step 1: 0 of 2 groups complete, the rest is sampled); "
        "a has been sampling for 15 s without a token"
    )


def test_the_sentence_tells_how_far_an_evaluation_is() -> None:
    cluster = a_published(HELD_OUT, num_held_out=3)
    (rollout,) = rollouts(cluster)
    rollout.finish(Unit(0, 0, "held_out"))
    cluster.exchange()
    assert after(cluster, 15).startswith("no news for 15 s: evaluation of v0, ")


# ── test node states ──────────────────────────────────────────────────────────────────────────
# What each node does or waits for, in words.


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


def test_a_version_that_waits_for_rollouts_says_that_none_is_connected() -> None:
    cluster = a_published(a_config(schedule={"staleness": 0.0}))
    finish_all(cluster, rollout(cluster))
    trainer(cluster).train()
    cluster.kill(rollout(cluster))
    cluster.exchange()
    assert states(cluster)["trainer"] == (
        "waiting",
        "version 1 to be live, which frees the window: no rollout is connected",
    )


def test_the_last_evaluation_says_whom_it_waits_for() -> None:
    cluster = a_published(replace(HELD_OUT, run=replace(HELD_OUT.run, steps=1)), num_held_out=1, capacity=8)
    finish_all(cluster, rollout(cluster))
    trainer(cluster).train()
    publish(cluster)
    assert states(cluster)["trainer"] == ("waiting", "the last evaluation")
    cluster.kill(next(node for node in cluster.nodes.values() if isinstance(node, Reward)))
    for unit in list(rollout(cluster).running):
        rollout(cluster).finish(unit)
    cluster.exchange()
    assert states(cluster)["trainer"] == ("waiting", "the last evaluation: no reward node is connected")


def finish(cluster: Cluster, *group_ids: int) -> None:
    """Finish the trajectories of these groups."""
    node = rollout(cluster)
    for unit in [unit for unit in node.running if unit.group_id in group_ids]:
        node.finish(unit)
    cluster.exchange()


def lose_spool(cluster: Cluster) -> None:
    cluster.scheduler.departed("spool.0", "told to stop", cluster.now_s, on_purpose=True)


def test_a_step_that_waits_for_its_oldest_groups_says_what_becomes_of_them() -> None:
    cluster = a_published(capacity=8)
    finish(cluster, 1, 2, 3)
    judge(cluster)
    assert states(cluster)["trainer"][1] == "step 1 waits for its oldest groups, which are still sampled"
    finish(cluster, 0)
    assert states(cluster)["trainer"][1] == "step 1 waits for its oldest groups, which are still graded"


def test_groups_that_no_reward_node_can_read_are_graded_once_their_spool_is_back() -> None:
    cluster = a_published(capacity=8)
    cluster.start_spool("another")
    finish(cluster, 0, 1, 2, 3)
    cluster.kill(next(node for node in cluster.nodes.values() if isinstance(node, Reward)))
    lose_spool(cluster)
    cluster.start_reward("r")
    cluster.exchange()
    told = "step 1: 0 of 2 groups complete, the rest is graded once spool is back"
    assert states(cluster)["trainer"] == ("waiting", told)


def test_a_batch_in_a_spool_that_is_away_names_the_spool_to_all_who_wait() -> None:
    cluster = a_published(capacity=8)
    finish(cluster, 0, 1, 2, 3)
    lose_spool(cluster)
    judge(cluster)
    found = states(cluster)
    assert found["trainer"] == ("waiting", "step 1 waits for spool, which is away with payloads of its groups")
    assert found["a"] == ("waiting", "spool, which is away: the window of 4 groups is full")
    note = "spool has been away for 0 s: the payloads of 4 groups are there; the run waits for it up to "
    assert [told[: len(note)] for told in status(cluster).notes if told.startswith("spool")] == [note]


def test_a_step_whose_groups_are_too_old_waits_for_a_newer_version() -> None:
    reissue = a_config(schedule={"order": "completion", "max_staleness": 0, "on_straggler": "reissue"})
    cluster = a_published(reissue, capacity=8)
    finish_all(cluster, rollout(cluster))
    trainer(cluster).train()
    cluster.exchange()
    assert states(cluster)["trainer"] == ("waiting", "version 1 to be live")


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
    cluster.scheduler.departed(trainer.peer, "was killed by SIGKILL", cluster.now_s)
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


# ── test restarts ─────────────────────────────────────────────────────────────────────────────
# Nodes that are started again are told until they are back.

KILLED = Exited("trainer-0", "was killed by SIGKILL", restarting=True)


def test_a_node_that_is_started_again_is_told_until_it_is_back() -> None:
    book = RestartBook()
    book.exited(KILLED, "supervisor-0.1", 100.0)
    assert book.notes(112.4) == ["trainer-0 was killed by SIGKILL 12 s ago and is starting again"]
    absence = book.returned("trainer-0")
    assert absence is not None
    assert (absence.since_s, absence.told_by) == (100.0, "supervisor-0.1")
    assert (book.notes(113.0), book.returned("trainer-0")) == ([], None)


def test_what_is_not_started_again_or_is_no_node_is_not_awaited() -> None:
    book = RestartBook()
    book.exited(KILLED, "s", 0.0)
    book.exited(Exited("trainer-0", "exited with 78", restarting=False), "s", 1.0)
    book.exited(Exited("broker-0", "was killed by SIGKILL", restarting=True), "s", 1.0)
    book.exited(Exited("tracker-wandb", "exited with 70", restarting=True, is_needed=False), "s", 1.0)
    assert book.notes(2.0) == []


# ── test status ───────────────────────────────────────────────────────────────────────────────
# Status of a run from the scheduler's books alone, at each stage of its groups.


def status(cluster: Cluster) -> Status:
    return run_status(cluster.scheduler, cluster.now_s, run="run")


def test_a_node_that_is_away_is_told_with_its_age() -> None:
    lost = NodeRecord(name="r", role="rollout", state="lost", cause="silent for 10 s", since_s=5.0)
    told = run_status(Cluster(a_config()).scheduler, 0.0, run="run", time_s=12.0, absent=[lost])
    assert told.absent == [AbsentNode("r", "rollout", "lost", "silent for 10 s", 7.0)]


@pytest.mark.parametrize(
    ("kinds", "state"),
    [(["node.lost"], "lost"), (["node.exited"], "exited"), (["node.left"], "left"), (["run.resumed"], "silent")],
)
def test_a_node_that_is_away_in_any_way_is_told_on_the_wire(kinds: list[str], state: str) -> None:
    events = [{"event": kind, "node": "r", "role": "rollout"} for kind in ("node.joined", *kinds)]
    told = run_status(Cluster(a_config()).scheduler, 0.0, run="run", absent=NodeStates(events).absent)
    read = CODEC.decode(encode(Envelope(1, 0, told, 0))).body
    assert isinstance(read, Status)
    assert [(node.node, node.state) for node in read.absent] == [("r", state)]


def of(cluster: Cluster, name: str) -> NodeStatus:
    return next(node for node in status(cluster).nodes if node.node == name)


def test_a_fresh_run_has_neither_version_nor_groups() -> None:
    told = status(Cluster(a_config()))
    assert (told.step, told.policy_version, told.open_groups, told.window) == (0, -1, 0, 4)
    assert told.groups == {"unleased": 0, "sampling": 0, "grading": 0, "complete": 0, "taken": 0}
    assert [node.node for node in told.nodes] == ["spool"]


def test_every_open_group_is_in_exactly_one_state() -> None:
    cluster = a_published()
    a = next(node for node in cluster.nodes.values() if node.name == "a")
    assert status(cluster).groups == {"unleased": 2, "sampling": 2, "grading": 0, "complete": 0, "taken": 0}

    for unit in list(a.running)[:2]:  # type: ignore[attr-defined]
        a.finish(unit)  # type: ignore[attr-defined]
    cluster.exchange()
    assert status(cluster).groups == {"unleased": 1, "sampling": 2, "grading": 1, "complete": 0, "taken": 0}

    judge(cluster)
    finish_all(cluster, a)  # type: ignore[arg-type]
    told = status(cluster)
    assert told.open_groups == sum(told.groups.values()) == 4
    assert told.groups["taken"] == 2


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


@pytest.mark.parametrize(("reward", "told"), [(0.48, 0.48), (0.25, None)])
def test_the_reward_of_an_evaluation_is_told_unless_it_is_the_accuracy(reward: float, told: float | None) -> None:
    cluster = a_published()
    cluster.scheduler.evaluation.results.append(Evaluated(0, 0.25, 4, {"reward": reward}))
    assert status(cluster).held_out_reward == told


def test_the_rate_of_tokens_follows_the_beats_and_silence_is_measured() -> None:
    cluster = a_published()
    publish(cluster)
    cluster.tick(0.5)
    cluster.tick(1.5, silent=[node.peer for node in cluster.nodes.values() if node.name == "a"])
    assert of(cluster, "a").silent_s == 1.5
    assert of(cluster, "trainer").silent_s == 0.0
