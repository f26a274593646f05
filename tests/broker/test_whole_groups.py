"""With `reward.group` a group is judged once all of it is stored, by one call of one node, and rewarded whole."""

from collections.abc import Sequence

import pytest

from asyncrl.broker.ledger.records import Dropped, FailedAttempt, LeftOut, Refused, Rewarded
from asyncrl.config.config import Config
from asyncrl.errors import ConfigError
from asyncrl.messages.reward import Grade, Scored, ScoredItem
from asyncrl.messages.rollout import Failed
from asyncrl.messages.trajectory import Unit
from tests.broker.driver import Cluster, Reward, Rollout, a_config
from tests.broker.test_scheduler import a_published, judge_of, of, overheard, rollouts

MEMBERS = [Unit(0, index) for index in range(3)]


def config(**sections: dict[str, object]) -> Config:
    """One step of one group of three trajectories, which are judged together."""
    plain: dict[str, dict[str, object]] = {
        "run": {"steps": 1},
        "schedule": {"groups_per_step": 1, "group_size": 3, "staleness": 0.0},
        "reward": {"group": "judge.py:rank"},
    }
    return a_config(**{name: plain.get(name, {}) | sections.get(name, {}) for name in {**plain, **sections}})


def sampling(**sections: dict[str, object]) -> tuple[Cluster, Rollout, Reward]:
    """A cluster whose rollout samples group 0, and its reward node."""
    cluster = a_published(config(**sections))
    return cluster, rollouts(cluster)[0], judge_of(cluster)


def finish(cluster: Cluster, node: Rollout, units: Sequence[Unit]) -> None:
    for unit in units:
        node.finish(unit)
    cluster.exchange()


def in_hand(judge: Reward) -> list[list[Unit]]:
    return [[item.unit for item in items] for items in judge.whole]


def test_a_group_is_judged_once_its_last_trajectory_is_stored_in_the_order_of_the_indices() -> None:
    cluster, node, judge = sampling()
    sent = overheard(cluster)
    finish(cluster, node, [MEMBERS[2], MEMBERS[0]])
    assert not [out for out in sent if isinstance(out.message, Grade)]

    finish(cluster, node, [MEMBERS[1]])
    assert in_hand(judge) == [MEMBERS]
    judge.judge_group()
    cluster.exchange()
    assert sorted(record.unit for record in of(cluster, Rewarded)) == MEMBERS


def test_it_waits_for_a_node_that_takes_all_of_it() -> None:
    cluster = a_published(config(schedule={"groups_per_step": 2}), capacity=6)
    (node,), judge = rollouts(cluster), judge_of(cluster)  # The reward node takes four trajectories at once.
    finish(cluster, node, list(node.running))
    assert in_hand(judge) == [MEMBERS]
    judge.judge_group()
    cluster.exchange()
    assert in_hand(judge) == [[Unit(1, index) for index in range(3)]]


@pytest.mark.parametrize("num_missing", [1, 2])
def test_verdicts_on_a_part_of_it_reward_nobody_and_all_are_judged_again(num_missing: int) -> None:
    cluster, node, judge = sampling()
    finish(cluster, node, MEMBERS)
    items = judge.whole.popleft()
    judge._done(Scored([ScoredItem(item.unit, 1.0, {}, item.lease_id) for item in items[num_missing:]]), len(items))
    cluster.exchange()

    (attempt,) = of(cluster, FailedAttempt)
    assert attempt.reason == f"verdicts on {3 - num_missing} of 3 trajectories, which reward.group judges together"
    assert not of(cluster, Rewarded)
    assert in_hand(judge) == [MEMBERS]


def test_verdicts_of_an_earlier_grading_count_for_nothing() -> None:
    cluster, node, judge = sampling()
    finish(cluster, node, MEMBERS)
    late = [ScoredItem(item.unit, 1.0, {}, item.lease_id) for item in judge.whole[0]]
    judge.fail_group()
    cluster.exchange()
    judge.say(Scored(late))
    cluster.exchange()
    assert not of(cluster, Rewarded)
    judge.judge_group()
    cluster.exchange()
    assert len(of(cluster, Rewarded)) == 3


def test_a_group_without_a_verdict_is_judged_again_and_then_dropped_whole() -> None:
    cluster, node, judge = sampling(schedule={"max_attempts": 2})
    finish(cluster, node, MEMBERS)
    judge.fail_group()
    cluster.exchange()
    assert in_hand(judge) == [MEMBERS]
    judge.fail_group()
    cluster.exchange()
    assert [(a.stage, a.is_final) for a in of(cluster, FailedAttempt)] == [("reward", False), ("reward", True)]
    assert [record.reason for record in of(cluster, Dropped)] == ["reward: the group function raised"]
    assert not of(cluster, LeftOut)
    assert not of(cluster, Rewarded)


def test_a_damaged_member_is_sampled_again_and_the_others_wait_for_it() -> None:
    cluster, node, judge = sampling()
    finish(cluster, node, MEMBERS)
    judge.fail_in_group("payload")
    cluster.exchange()
    assert [record.unit for record in of(cluster, Refused)] == [MEMBERS[2]]
    assert in_hand(judge) == []
    finish(cluster, node, [MEMBERS[2]])
    assert in_hand(judge) == [MEMBERS]


@pytest.mark.parametrize("fails_in", ["reward", "environment"])
def test_what_has_failed_for_good_is_left_out_and_the_others_are_judged_without_it(fails_in: str) -> None:
    cluster, node, judge = sampling(schedule={"max_attempts": 1})
    if fails_in == "reward":
        finish(cluster, node, MEMBERS)
        judge.fail_in_group("reward")
    else:
        finish(cluster, node, MEMBERS[:2])
        lease_id, _ = node.running[MEMBERS[2]]
        node.say(Failed(MEMBERS[2], lease_id, "environment", "it raised", retryable=False))
    cluster.exchange()
    assert [record.unit for record in of(cluster, LeftOut)] == [MEMBERS[2]]
    assert in_hand(judge) == [MEMBERS[:2]]
    judge.judge_group()
    cluster.exchange()
    assert [record.unit for record in of(cluster, Rewarded)] == MEMBERS[:2]


def test_one_trajectory_is_no_group_to_compare() -> None:
    assert config(algorithm={"advantage": "reinforce_plus_plus"}).least_group == 2
    assert config(algorithm={"advantage": "reinforce_plus_plus"}, reward={"group": ""}).least_group == 1
    with pytest.raises(ConfigError, match=r"schedule\.group_size is 1; use at least 2"):
        config(schedule={"group_size": 1})


def test_a_lost_node_and_a_slow_one_give_the_whole_group_to_others() -> None:
    cluster, node, judge = sampling()
    finish(cluster, node, MEMBERS)
    cluster.kill(judge)
    other = cluster.start_reward("other")
    cluster.exchange()
    assert in_hand(other) == [MEMBERS]

    third = cluster.start_reward("third")
    cluster.exchange()
    cluster.tick(cluster.config.verdict_s * 4 + 61.0)
    cluster.exchange()
    assert in_hand(third) == [MEMBERS]


def test_a_group_of_which_one_trajectory_is_in_a_spool_that_is_away_waits_for_it() -> None:
    cluster, node, judge = sampling()
    cluster.scheduler.grading.park("spool")
    finish(cluster, node, MEMBERS)
    assert in_hand(judge) == []
    assert len(cluster.scheduler.grading) == 3
    cluster.scheduler.grading.unpark("spool")
    cluster.tick()
    cluster.exchange()
    assert in_hand(judge) == [MEMBERS]


def test_a_restarted_broker_has_the_whole_group_judged_or_waits_for_the_rest_of_it() -> None:
    for stored, queued in ((MEMBERS[:2], []), (MEMBERS, MEMBERS)):
        cluster, node, _ = sampling()
        finish(cluster, node, stored)
        waiting = Cluster(cluster.config, before=cluster).scheduler.grading.waiting
        assert [slot.unit for slots in waiting.values() for slot in slots] == queued


def test_held_out_completions_are_judged_each_for_itself() -> None:
    cluster = a_published(
        config(data={"train": "train.jsonl", "held_out": "held_out.jsonl"}, evaluation={"at_start": True}),
        num_held_out=2,
    )
    (node,) = rollouts(cluster)
    for unit in [unit for unit in node.running if unit.split == "held_out"]:
        node.finish(unit)
    cluster.exchange()
    judge = judge_of(cluster)
    assert [item.unit.split for item in judge.in_hand] == ["held_out"] * 2
    assert not judge.whole
    judge.judge()
    cluster.exchange()
    (rewarded,) = of(cluster, Rewarded)
    assert rewarded.unit.split == "held_out"
