"""What may go wrong in a cluster, and the promises that hold all the same."""

from collections import Counter
from itertools import chain
from math import ceil, inf
from random import Random
from typing import Any

from hypothesis import strategies as st

from asyncrl.broker.groups.filtering import ZERO_VARIANCE
from asyncrl.broker.ledger.audit import Audit, audit
from asyncrl.broker.ledger.records import Admitted, Dropped, Result, Rewarded, Taken
from asyncrl.config.sections import Config
from tests.broker.driver import Cluster, Node, Reward, Rollout, Trainer, a_config, is_easy, version_of

MAX_ACTIONS = 20_000
MAX_DEATHS = 4
"""More while one version is published, and the run gives up, as it should."""


def age_rules(staleness: int, order: str, lag: int, on_straggler: str | None) -> dict[str, object]:
    """What a config may say of ``order`` and ``max_staleness``, nearest to what was asked for."""
    if on_straggler is None:
        return {"order": order}
    if on_straggler == "wait":
        lag = max(lag, staleness)
    elif lag >= staleness:
        order = "completion"
    return {"order": order, "max_staleness": lag, "on_straggler": on_straggler}


CONFIGS = st.builds(
    lambda groups, size, publish, staleness, every, samples, attempts, order, lag, on_straggler, filter_: a_config(
        run={"steps": 5},
        data={"train": "train.jsonl", "held_out": "held_out.jsonl"},
        schedule={
            "groups_per_step": groups,
            "group_size": size,
            "steps_per_publish": publish,
            "staleness": float(staleness),
            "max_attempts": attempts,
            "filter": filter_,
            **age_rules(staleness, order, lag, on_straggler),
        },
        evaluation={"every_versions": every, "samples": samples, "temperature": 1.0},
        checkpoint={"every_steps": every * publish},
    ),
    groups=st.integers(1, 3),
    size=st.integers(2, 3),
    publish=st.integers(1, 2),
    staleness=st.integers(0, 2),
    every=st.integers(0, 2),
    samples=st.integers(1, 3),
    attempts=st.integers(1, 3),
    order=st.sampled_from(["fifo", "completion"]),
    lag=st.integers(0, 2),
    on_straggler=st.sampled_from([None, "wait", "reissue", "train"]),
    filter_=st.sampled_from(["none", "zero_variance"]),
)
LENGTHS = st.integers(0, 400)
SEEDS = st.integers(0, 2**32)


class Chaos:
    """Picks what happens next; now and then something that should not."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._deaths = 0

    def act(self, dice: Random) -> None:
        """One more thing happens."""
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
        """A node dies; another start of it says Hello, unless there is one left without it."""
        kind = dice.choice([Rollout, Rollout, Reward, Trainer])
        alive = [node for node in self._cluster.nodes.values() if isinstance(node, kind)]
        victim = dice.choice(alive)
        self._deaths += 1
        self._cluster.kill(victim)
        if len(alive) == 1 or dice.random() < 0.7:
            restart(self._cluster, victim)


def restart(cluster: Cluster, node: Node) -> None:
    """Another start of a node."""
    match node:
        case Rollout(name=name):
            cluster.start_rollout(name)
        case Reward(name=name):
            cluster.start_reward(name)
        case Trainer():
            cluster.start_trainer()


def start_all(cluster: Cluster) -> None:
    """A trainer, and two of all others."""
    cluster.start_trainer()
    for name in ("a", "b"):
        cluster.start_rollout(name)
        cluster.start_reward(f"judge-{name}")


def run_to_the_end(cluster: Cluster, dice: Random) -> None:
    """Without further faults, in any order."""
    num_actions = 0
    while not cluster.is_over:
        actions = cluster.actions()
        assert actions, f"nothing is left to do, and the run is not finished: {cluster.scheduler.groups}"
        assert (num_actions := num_actions + 1) < MAX_ACTIONS
        dice.choice(actions)[1]()
        check(cluster)


def check_promises(cluster: Cluster) -> None:
    """What holds at the end."""
    if cluster.cause:
        assert "could not be published in 5 tries" in cluster.cause
        return
    check_accounts(cluster)
    check_training(cluster)
    check_evaluations(cluster)


def check(cluster: Cluster) -> None:
    """What holds after every action."""
    config, scheduler = cluster.config, cluster.scheduler
    assert scheduler.window.num_open <= config.schedule.window
    for node in cluster.nodes.values():
        known = scheduler.nodes.get(node.peer)
        assert known is None or known.granted <= max(known.credit_limit, 0), "a node was given more than it asked for"


def check_accounts(cluster: Cluster) -> None:
    """What the ledger says at the end."""
    config = cluster.config
    by_kind: dict[type, list[Any]] = {}
    for record in cluster.records:
        by_kind.setdefault(type(record), []).append(record)
    admitted = [record.group_id for record in by_kind[Admitted]]
    taken = list(chain.from_iterable(record.group_ids for record in by_kind[Taken]))
    dropped = [record.group_id for record in by_kind.get(Dropped, [])]
    filtered = [record.group_id for record in by_kind.get(Dropped, []) if record.reason == ZERO_VARIANCE]

    assert admitted == list(range(len(admitted))), "no group is skipped"
    assert sorted(taken + dropped) == admitted, "every group ends once: trained or dropped"
    assert len(taken) == config.run.steps * config.schedule.groups_per_step
    assert max(Counter((record.unit, record.num_restarts) for record in by_kind[Result]).values()) == 1
    assert max(Counter((record.unit, record.num_restarts) for record in by_kind[Rewarded]).values()) == 1
    if config.schedule.filter == "zero_variance":
        assert all(is_easy(group_id) for group_id in filtered), "nothing is filtered that teaches something"
        assert not any(is_easy(group_id) for group_id in taken), "nothing is trained on that teaches nothing"
    else:
        assert not filtered
    assert not audited(cluster).problems


def check_training(cluster: Cluster) -> None:
    """What the trainer saw: every trajectory of what was taken, once, none too old, and all of one beginning."""
    config, schedule = cluster.config, cluster.config.schedule
    consumed = [
        (version_of(config, step), sample)
        for step, batch in cluster.disk.batches.items()
        for sample in batch.trajectories
    ]
    units = [sample.unit for _, sample in consumed]
    assert len(set(units)) == len(units) == config.run.steps * schedule.groups_per_step * schedule.group_size
    staleness = [version - sample.summary.oldest_version for version, sample in consumed]
    assert max(staleness) <= most_versions(config)
    assert all(s.metrics["offset"] == s.ref.offset for _, s in consumed), "a verdict is on what it is trained with"


def most_versions(config: Config) -> float:
    """How stale a trajectory may be when it is trained on."""
    schedule = config.schedule
    by_window = ceil(schedule.staleness) if schedule.order == "fifo" else inf
    by_lag = inf if schedule.max_staleness is None or schedule.on_straggler == "train" else schedule.max_staleness
    return min(by_window, by_lag)


def audited(cluster: Cluster) -> Audit:
    """What `asyncrl audit` says of it."""
    schedule = cluster.config.schedule
    return audit(cluster.records, schedule)


def check_evaluations(cluster: Cluster) -> None:
    """Each answer was written by the one version it is said to measure, and the last version was measured."""
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
