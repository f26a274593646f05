"""Random faults in a simulated cluster, and checks that hold in spite of them."""

from collections import Counter
from itertools import chain
from math import ceil, inf
from random import Random
from typing import Any

from hypothesis import strategies as st

from asyncrl.broker.groups.filtering import ZERO_VARIANCE
from asyncrl.broker.ledger.audit import Audit, audit
from asyncrl.broker.ledger.records import (
    Admitted,
    Dropped,
    GoalMet,
    LeftOut,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
)
from asyncrl.config.config import Config
from asyncrl.messages.trajectory import Unit
from tests.broker.driver import Cluster, Node, Reward, Rollout, Trainer, a_config, is_easy, version_of

MAX_ACTIONS = 20_000
MAX_DEATHS = 4
"""More deaths during the transfers of one version would end the run, as they should."""


def age_rules(staleness: int, order: str, max_staleness: int, on_straggler: str | None) -> dict[str, object]:
    """Valid schedule settings for ``order`` and ``max_staleness``, nearest to the requested ones."""
    if on_straggler is None:
        return {"order": order}
    if on_straggler == "wait":
        max_staleness = max(max_staleness, staleness)
    elif max_staleness >= staleness:
        order = "completion"
    return {"order": order, "max_staleness": max_staleness, "on_straggler": on_straggler}


CONFIGS = st.builds(
    lambda groups, size, publish, staleness, every, samples, attempts, order, oldest, mode, filter_, group, goal: (
        a_config(
            run={"steps": 5, "stop_when": goal if every else ""},
            data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
            schedule={
                "groups_per_step": groups,
                "group_size": size,
                "steps_per_publish": publish,
                "staleness": float(staleness),
                "max_attempts": attempts,
                "filter": filter_,
                **age_rules(staleness, order, oldest, mode),
            },
            evaluation={"every_versions": every, "samples": samples, "temperature": 1.0},
            checkpoint={"every_steps": every * publish},
            reward={"group": group},
        )
    ),
    groups=st.integers(1, 3),
    size=st.integers(2, 3),
    publish=st.integers(1, 2),
    staleness=st.integers(0, 2),
    every=st.integers(0, 2),
    samples=st.integers(1, 3),
    attempts=st.integers(1, 3),
    order=st.sampled_from(["fifo", "windowed", "completion"]),
    oldest=st.integers(0, 2),
    mode=st.sampled_from([None, "wait", "reissue", "train", "mask"]),
    filter_=st.sampled_from(["none", "zero_variance"]),
    group=st.sampled_from(["", "judge.py:tournament"]),
    goal=st.sampled_from(["", "accuracy >= 1", "accuracy > .5"]),
)
LENGTHS = st.integers(0, 400)
SEEDS = st.integers(0, 2**32)


class Chaos:
    """Picks the next action at random; now and then a fault."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._deaths = 0

    def act(self, dice: Random) -> None:
        faults = [fault for node in self._cluster.nodes.values() for fault in node.faults()]
        actions = self._cluster.actions()
        match dice.randrange(20):
            case 0:
                self._cluster.tick()
            case 1 if self._deaths < MAX_DEATHS:
                self._replace(dice)
            case 2 if faults:
                dice.choice(faults)[1]()
            case _ if actions:
                dice.choice(actions)[1]()

    def _replace(self, dice: Random) -> None:
        """Kill a node and start it again; of several nodes of a role one may stay away."""
        kind = dice.choice([Rollout, Rollout, Reward, Trainer])
        alive = [node for node in self._cluster.nodes.values() if isinstance(node, kind)]
        victim = dice.choice(alive)
        self._deaths += 1
        self._cluster.kill(victim)
        if len(alive) == 1 or dice.random() < 0.7:
            restart(self._cluster, victim)


def restart(cluster: Cluster, node: Node) -> None:
    match node:
        case Rollout(name=name):
            cluster.start_rollout(name)
        case Reward(name=name):
            cluster.start_reward(name)
        case Trainer():
            cluster.start_trainer()


def start_all(cluster: Cluster) -> None:
    """Start a trainer, two rollouts and two reward nodes."""
    cluster.start_trainer()
    for name in ("a", "b"):
        cluster.start_rollout(name)
        cluster.start_reward(f"judge-{name}")


def run_to_the_end(cluster: Cluster, dice: Random) -> None:
    """Act without faults, in random order, until the run is over."""
    num_actions = 0
    while not cluster.is_over:
        actions = cluster.actions()
        assert actions, f"nothing is left to do, and the run is not finished: {cluster.scheduler.groups.train}"
        assert (num_actions := num_actions + 1) < MAX_ACTIONS
        dice.choice(actions)[1]()
        check(cluster)


def check_promises(cluster: Cluster) -> None:
    if cluster.cause:
        assert "could not be published in 5 tries" in cluster.cause
        return
    check_accounts(cluster)
    check_training(cluster)
    check_evaluations(cluster)
    if cluster.config.reward.group:
        check_calls(cluster)


def check(cluster: Cluster) -> None:
    """Checks after every action."""
    config, scheduler = cluster.config, cluster.scheduler
    assert scheduler.window.num_open <= config.schedule.window
    for node in cluster.nodes.values():
        known = scheduler.nodes.get(node.peer)
        assert known is None or known.granted <= max(known.credit_limit, 0), "a node was given more than it asked for"


def check_accounts(cluster: Cluster) -> None:
    """Every group and trajectory is accounted for in the ledger."""
    config = cluster.config
    by_kind: dict[type, list[Any]] = {}
    for record in cluster.records:
        by_kind.setdefault(type(record), []).append(record)
    admitted = [record.group_id for record in by_kind[Admitted]]
    taken = list(chain.from_iterable(record.group_ids for record in by_kind.get(Taken, [])))
    dropped = [record.group_id for record in by_kind.get(Dropped, [])]
    filtered = [record.group_id for record in by_kind.get(Dropped, []) if record.reason == ZERO_VARIANCE]

    assert admitted == list(range(len(admitted))), "no group is skipped"
    ended = sorted(taken + dropped)
    assert len({*ended}) == len(ended), "no group ends twice"
    assert ended == admitted or GoalMet in by_kind, (
        "every group ends, unless the run has met its goal: trained or dropped"
    )
    assert len(taken) == cluster.scheduler.training.num_steps * config.schedule.groups_per_step
    for kind in (Result, Rewarded):
        units = Counter((r.unit, r.num_restarts, r.num_refused) for r in by_kind[kind])
        assert max(units.values(), default=1) == 1
    untrained = [record.group_id for record in by_kind.get(Untrained, [])]
    assert sorted(untrained) == sorted({unit.group_id for unit in cluster.disk.damaged}), "each once, and no other"
    if config.schedule.filter == "zero_variance":
        alike = {unit.group_id for unit in left_out(cluster) if unit.index == 0}  # The others have the same reward.
        teaching = {group_id for group_id in filtered if not is_easy(group_id)}
        assert teaching <= alike, "nothing is filtered that teaches something"
        assert not any(is_easy(group_id) for group_id in taken), "nothing is trained on that teaches nothing"
    else:
        assert not filtered
    accounts = audited(cluster)
    assert not accounts.problems
    assert accounts.issued == accounts.trained + len(untrained) + len(dropped) + len(admitted) - len(ended)
    assert accounts.failed_attempts.get("trainer", 0) == len(cluster.disk.damaged)


def check_training(cluster: Cluster) -> None:
    """The trainer saw every trajectory of its batches once, none too old, with the reward of its own payload."""
    config, schedule = cluster.config, cluster.config.schedule
    consumed = [
        (version_of(config, step), trajectory)
        for step, batch in cluster.disk.batches.items()
        for trajectory in batch.trajectories
    ]
    units = [trajectory.unit for _, trajectory in consumed]
    num_groups = cluster.scheduler.training.num_steps * schedule.groups_per_step
    without = [unit for unit in left_out(cluster) if unit.group_id in {trained.group_id for trained in units}]
    assert len(set(units)) == len(units) == num_groups * schedule.group_size - len(without)
    assert not {*units} & {*without}, "what failed for good is not trained on"
    assert min(Counter(unit.group_id for unit in units).values(), default=config.least_group) >= config.least_group
    staleness = [version - trajectory.summary.oldest_version for version, trajectory in consumed]
    assert max(staleness, default=0) <= most_versions(config)
    assert all(t.metrics["offset"] == t.ref.offset for _, t in consumed), "a reward belongs to the trained payload"


def check_calls(cluster: Cluster) -> None:
    """All rewards of a group are of one call."""
    calls: dict[tuple[int, int], set[float]] = {}
    for record in cluster.records:
        if isinstance(record, Rewarded) and record.unit.split == "train":
            calls.setdefault((record.unit.group_id, record.num_restarts), set()).add(record.metrics["call"])
    assert calls or cluster.scheduler.has_met_goal, "a base model may meet it before anything is graded"
    assert max(map(len, calls.values()), default=1) == 1


def left_out(cluster: Cluster) -> set[Unit]:
    """Trajectories that failed for good, and that their groups went on without."""
    found: set[Unit] = set()
    for record in cluster.records:
        if isinstance(record, LeftOut):
            found.add(record.unit)
        elif isinstance(record, Restarted):
            found = {unit for unit in found if unit.group_id != record.group_id}
    return found


def most_versions(config: Config) -> float:
    """Bound on the staleness of a trained trajectory, in versions."""
    schedule = config.schedule
    by_window = ceil(schedule.staleness_bound) if schedule.order == "fifo" else inf
    if schedule.order == "windowed":
        by_window = (schedule.window + (schedule.reach or 1) - 2) // (
            schedule.groups_per_step * schedule.steps_per_publish
        )
    by_bound = inf if schedule.kept_max_staleness is None else schedule.kept_max_staleness
    return min(by_window, by_bound)


def audited(cluster: Cluster) -> Audit:
    schedule = cluster.config.schedule
    return audit(cluster.records, schedule)


def check_evaluations(cluster: Cluster) -> None:
    """Each held-out completion was written by the evaluated version alone, and the last version was evaluated."""
    results = cluster.scheduler.evaluation.results
    assert results[-1].policy_version == cluster.scheduler.final_version
    assert len({result.policy_version for result in results}) == len(results)
    written_by = [
        (r.summary.oldest_version, r.summary.newest_version)
        for r in cluster.records
        if isinstance(r, Result) and r.unit.split == "held_out"
    ]
    measured = {result.policy_version for result in results}
    assert all(oldest == newest for oldest, newest in written_by)
    assert measured <= {oldest for oldest, _ in written_by} | {r.policy_version for r in results if r.metrics["failed"]}
