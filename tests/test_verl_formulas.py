"""Each formula of verl in docs/verl.md agrees with the behaviour of asyncrl."""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from asyncrl.algo.losses import resolve_loss
from asyncrl.broker.ledger.records import Admitted, Dropped, Taken, VersionLive
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.schedule import Schedule
from tests.broker.driver import Action, Cluster, Rollout, Trainer, a_config

VERSIONS = 4


class Verl(NamedTuple):
    """verl's settings and the quantities it derives from them."""

    mini: int = 2
    """verl's ppo_mini_batch_size."""
    require: int = 1
    """verl's require_batches."""
    trigger: int = 1
    """verl's trigger_parameter_sync_step."""
    threshold: str = "0"
    """verl's staleness_threshold, as text, so that it is exact."""
    total: int = 24
    """verl's total_rollout_steps."""

    @property
    def required_samples(self) -> int:
        return self.mini * self.require

    @property
    def max_required_samples(self) -> int:
        """The exact value; verl computes it with floats."""
        return int(self.required_samples * (Fraction(self.threshold) + 1) * self.trigger)

    @property
    def total_train_steps(self) -> int:
        return int(self.total / (self.required_samples * self.trigger))

    def to_config(self, **schedule: Any) -> Config:
        return a_config(
            run={"steps": self.trigger * self.total_train_steps},
            schedule={
                "groups_per_step": self.required_samples,
                "group_size": 2,
                "steps_per_publish": self.trigger,
                "staleness": float(self.threshold),
                **schedule,
            },
        )


BATCHES = (1, 2, 3, 7, 8, 16, 30, 64, 96, 100, 256)
TRIGGERS = (1, 2, 3, 4, 5, 8, 10, 16)
THRESHOLDS = ("0", "0.1", "0.15", "0.2", "0.25", "0.3", "0.4", "0.5", "0.6", "0.7", "0.9", "1", "1.1", "1.5", "2", "3")
SMALL = [Verl(mini, 1, trigger, s, mini * trigger * VERSIONS) for mini, trigger, s in
         product((1, 2, 3), (1, 2, 3), ("0", "0.1", "0.5", "1", "1.5"))]  # fmt: skip


def started(config: Config, *, rollouts: int = 1, capacity: int = 10**6) -> Cluster:
    """Make version 0 live and lease as much as possible."""
    cluster = Cluster(config)
    for number in range(rollouts):
        cluster.start_rollout(f"rollout-{number}", capacity)
    cluster.start_reward("reward")
    cluster.start_trainer()
    publish(cluster)
    return cluster


def publish(cluster: Cluster) -> None:
    """Finish the open transfer without sampling or training."""
    cluster.exchange()
    while moving := [node for node in cluster.nodes.values() if getattr(node, "transfers", None)]:
        for node in moving:
            node.transferred()  # type: ignore[attr-defined]
        cluster.exchange()
        for node in rollouts_of(cluster):
            if node.staged_version > node.policy_version:
                node.swap()
        cluster.exchange()


def rollouts_of(cluster: Cluster) -> list[Rollout]:
    return [node for node in cluster.nodes.values() if isinstance(node, Rollout)]


def trainer_of(cluster: Cluster) -> Trainer:
    return next(node for node in cluster.nodes.values() if isinstance(node, Trainer))


def sample(cluster: Cluster) -> None:
    """Sample and verify everything possible; nothing is trained or published."""

    def possible() -> list[Action]:
        names = ("finish", "judge", "hears", "is heard", "spool", "commit")
        return [action for action in cluster.actions() if any(name in action[0] for name in names)]

    while actions := possible():
        actions[0][1]()


def finished(config: Config, seed: int) -> Cluster:
    """A whole run in random order."""
    dice, cluster = Random(seed), started(config)
    cluster.settle(dice.choice)
    assert cluster.scheduler.is_finished
    return cluster


def records_of(cluster: Cluster, kind: type[Any]) -> list[Any]:
    return [record for record in [*cluster.records, *cluster.uncommitted] if isinstance(record, kind)]


def verl_id(verl: Verl) -> str:
    return f"P={verl.required_samples} T={verl.trigger} S={verl.threshold}"


# ── max_required_samples, max_queue_size, max_concurrent_samples ────────────────────────────


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_window_is_max_required_samples(threshold: str) -> None:
    for batch, trigger in product(BATCHES, TRIGGERS):
        schedule = Schedule(groups_per_step=batch, steps_per_publish=trigger, staleness=float(threshold))
        assert schedule.window == Verl(batch, 1, trigger, threshold).max_required_samples
        cut = int(batch * (float(threshold) + 1) * trigger)
        assert schedule.window - cut in {0, 1}, "verl's floats lose at most one group and never gain one"


def test_float_rounding_in_verl_can_lose_one_group() -> None:
    assert int(3 * (0.4 + 1) * 5) == 20
    assert Schedule(groups_per_step=3, steps_per_publish=5, staleness=0.4).window == 21


def test_require_batches_makes_the_same_window_as_more_groups_or_as_more_steps() -> None:
    for mini, require, trigger, threshold in product((1, 4, 32), (1, 2, 3), (1, 4), ("0", "0.1", "0.5", "1")):
        verl, staleness = Verl(mini, require, trigger, threshold), float(threshold)
        larger = Schedule(groups_per_step=mini * require, steps_per_publish=trigger, staleness=staleness)
        more = Schedule(groups_per_step=mini, steps_per_publish=trigger * require, staleness=staleness)
        assert larger.window == more.window == verl.max_required_samples


@pytest.mark.parametrize("verl", SMALL, ids=verl_id)
def test_at_most_max_queue_size_finished_groups_wait_and_none_is_discarded(verl: Verl) -> None:
    cluster = started(verl.to_config())

    sample(cluster)

    taken = sum(len(record.group_ids) for record in records_of(cluster, Taken))
    assert len(cluster.scheduler.training.batches.complete) + taken == min(verl.max_required_samples, verl.total)
    assert not records_of(cluster, Dropped)


@pytest.mark.parametrize("verl", SMALL, ids=verl_id)
def test_max_concurrent_samples_groups_are_generated_at_once(verl: Verl) -> None:
    for replicas, per_replica in ((1, 1), (2, 2), (3, 16)):
        cluster = started(verl.to_config(), rollouts=replicas, capacity=per_replica * 2)
        running = {unit.group_id for node in rollouts_of(cluster) for unit in node.running}
        assert len(running) == min(replicas * per_replica, verl.max_required_samples, verl.total)


# ── total_train_steps, parameter sync ───────────────────────────────────────────────────────


@pytest.mark.parametrize("total", [6, 12, 13, 17, 24])
def test_a_run_has_total_train_steps_versions_and_consumes_whole_versions(total: int) -> None:
    for mini, trigger in product((1, 2, 3), (1, 2)):
        verl = Verl(mini, 1, trigger, "0.5", total)
        cluster = finished(verl.to_config(), seed=total)
        assert cluster.scheduler.final_version == verl.total_train_steps
        assert records_of(cluster, VersionLive)[-1].policy_version == verl.total_train_steps
        assert sum(len(record.group_ids) for record in records_of(cluster, Taken)) == verl.total // (mini * trigger) * (
            mini * trigger
        )


@pytest.mark.parametrize("verl", SMALL, ids=verl_id)
def test_parameters_are_synchronised_when_the_step_counter_returns_to_one(verl: Verl) -> None:
    cluster = finished(verl.to_config(), seed=1)

    counter, version, expected = 1, 0, [(0, 0)]
    for step in range(cluster.config.run.steps):
        counter = counter % verl.trigger + 1
        if counter == 1:
            version += 1
            expected.append((version, step + 1))
    assert [(record.policy_version, record.next_step) for record in records_of(cluster, VersionLive)] == expected


# ── the staleness counter: admission, pause, reset ──────────────────────────────────────────


def stalenesses(records: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Groups left over at each sync: running, queued, or taken before it; and groups admitted after it."""
    batches = {record.step: record.group_ids for record in records if isinstance(record, Taken)}
    left_over: list[int] = []
    admitted: list[int] = []
    for record in records:
        match record:
            case VersionLive(next_step=next_step):
                left_over.append(sum(admitted) - sum(len(batches[step]) for step in range(next_step)))
                admitted.append(0)
            case Admitted():
                admitted[-1] += 1
    return left_over, admitted


@pytest.mark.parametrize("order", ["fifo", "completion"])
@pytest.mark.parametrize("verl", SMALL, ids=verl_id)
def test_each_version_admits_the_documented_number_of_groups(verl: Verl, order: str) -> None:
    """rollout_num = (1 + S) P T - num_staleness_sample, until the run has enough groups."""
    left_over, admitted = stalenesses(finished(verl.to_config(order=order), seed=7).records)

    needed = verl.required_samples * verl.trigger * VERSIONS
    for version, num_staleness in enumerate(left_over):
        assert admitted[version] == min(verl.max_required_samples - num_staleness, needed), version
        needed -= admitted[version]
    if verl.threshold == "0":
        assert admitted[:VERSIONS] == [verl.required_samples * verl.trigger] * VERSIONS


@pytest.mark.parametrize("verl", SMALL, ids=verl_id)
def test_generation_pauses_at_a_full_counter_and_a_sync_sets_it_to_the_remaining_groups(verl: Verl) -> None:
    cluster = started(verl.to_config())
    full = min(verl.max_required_samples, verl.total)
    assert cluster.scheduler.window.num_open == full

    while trainer_of(cluster).policy_version < 1:
        sample(cluster)
        assert len(records_of(cluster, Admitted)) == full, "consumption frees no room"
        trainer_of(cluster).train()
    cluster.exchange()
    consumed = verl.required_samples * verl.trigger
    assert len(records_of(cluster, Admitted)) == full, "a staged version frees no room"
    publish(cluster)

    running_or_queued = full - consumed
    again = min(verl.max_required_samples - running_or_queued, verl.total - full)
    assert len(records_of(cluster, Admitted)) == full + again
    assert cluster.scheduler.window.num_open == running_or_queued + again


# ── partial_rollout ─────────────────────────────────────────────────────────────────────────


def test_a_partial_rollout_continues_with_new_weights_and_keeps_both_versions() -> None:
    cluster = started(Verl(mini=1, threshold="1", total=4).to_config())
    (node,) = rollouts_of(cluster)
    for unit in [unit for unit in node.running if unit.group_id == 0]:
        node.finish(unit)
    while 0 not in trainer_of(cluster).batches:
        cluster.exchange()
        for name, act in cluster.actions():
            if "judge" in name:
                act()
    trainer_of(cluster).train()
    running_before = dict(node.running)
    publish(cluster)
    assert running_before.items() <= node.running.items(), "nothing was aborted"

    sample(cluster)

    summaries = {
        trajectory.unit.group_id: trajectory.summary for trajectory in trainer_of(cluster).batches[1].trajectories
    }
    assert [(s.oldest_version, s.newest_version, s.num_spans) for s in summaries.values()] == [(0, 1, 2)]


# ── the page itself ─────────────────────────────────────────────────────────────────────────


PAGE = (Path(__file__).parent.parent / "docs" / "verl.md").read_text(encoding="utf-8")


def test_every_asyncrl_setting_on_the_page_exists() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}})
    named_keys = Counter(
        word.strip("`,;:.()")
        for word in PAGE.split()
        if word.strip("`,;:.()").startswith(("schedule.", "run.", "rollout.slots"))
    )
    assert len(named_keys) > 10
    for key in named_keys:
        section, name = key.split(".")
        assert hasattr(getattr(config, section), name), key


def test_every_default_on_the_page_is_the_default() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}})
    _, _, section = PAGE.partition("### Defaults")
    rows = re.findall(r"^\| `(\w+(?:\.\w+)+)` \| .+ \| `(.+)`.* \|$", section, re.MULTILINE)

    assert len(rows) > 15
    assert {key: str(attrgetter(key)(config)) for key, _ in rows} == dict(rows)


def test_every_default_clip_bound_on_the_page_is_the_losses_own() -> None:
    _, _, section = PAGE.partition("| default of | verl | ")
    head, _, low, high = (
        [cell.strip("` ") for cell in line.strip("|").split("|")] for line in section.splitlines()[:4]
    )

    for loss, *bounds in zip(head, low[2:], high[2:], strict=True):
        settings = resolve_loss(loss).settings
        assert [float(bound) for bound in bounds] == [settings["clip_low"], settings["clip_high"]], loss
