"""The broker's metrics say what its books say."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.broker.metrics.batch_metrics import RunTotals
from asyncrl.broker.metrics.readings import Readings
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status import run_status
from asyncrl.messages.session import Hello
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.words import Role
from asyncrl.records.metrics import METRICS
from tests.broker.driver import a_config, a_scheduler
from tests.broker.test_scheduler import a_published

LEDGER: Any = SimpleNamespace(head=SimpleNamespace(num_records=70), num_transactions=5, transactions_s=0.25)
PACE = {"tokens_per_s": 90.0, "step_recent_s": 1.0, "wait_trainer": 0.5, "wait_rollout": 0.25}
LINE = {"step": 0, "reward": 0.5, "accuracy": 0.25, "tokens": 90.0, "staleness_max": 2.0, "staleness_mean": 1.5}


def values(readings: Readings) -> dict[tuple[str, ...], float]:
    return {(sample.name.removeprefix("asyncrl_broker_"), *sample.labels.values()): sample.value for sample in readings}


@pytest.fixture
def scheduler() -> Scheduler:
    return a_scheduler(a_config(run={"steps": 3}))


def test_every_reading_is_in_the_table_with_its_labels(scheduler):
    readings = Readings(a_config(), scheduler, LEDGER, RunTotals())
    readings.stepped(LINE | PACE | {"length_mean": 3.0, "truncated": 0.0})
    scheduler.evaluation.results.append(Evaluated(2, 0.75, 16))
    found = list(readings)
    assert {sample.name for sample in found} == {name for name, metric in METRICS.items() if metric.owner == "broker"}
    for sample in found:
        for label, allowed in METRICS[sample.name].labels.items():
            assert sample.labels[label] in allowed


def test_progress_is_that_of_the_run_and_the_last_step_that_of_its_line(scheduler):
    now_s = 100.0
    readings = Readings(a_config(run={"steps": 3}), scheduler, LEDGER, RunTotals([LINE]), lambda: now_s)
    before = values(readings)
    assert (before["steps_trained",], before["steps_planned",], before["tokens_trained",]) == (1, 3, 90)
    assert ("step_reward",) not in before, "a broker that has just started knows of no step"
    now_s = 130.0
    readings.stepped(LINE)
    after = values(readings)
    assert (after["step_reward",], after["step_staleness_max",]) == (0.5, 2.0)
    assert (before["last_step_timestamp_seconds",], after["last_step_timestamp_seconds",]) == (100.0, 130.0)


def test_nodes_are_counted_by_role_and_state(scheduler):
    readings = Readings(a_config(), scheduler, LEDGER, RunTotals())
    joining: list[tuple[Role, str]] = [("rollout", "a"), ("rollout", "b"), ("reward", "c")]
    for role, name in joining:
        scheduler.joined(f"{name}.1", Hello(0, role, name, "1"), 0.0)
    scheduler.nodes.with_role("rollout")[0].is_ready = True
    scheduler.nodes.with_role("rollout")[1].is_quiet = True
    found = values(readings)
    assert (found["nodes", "rollout", "ready"], found["nodes", "rollout", "silent"]) == (1, 1)
    assert (found["nodes", "reward", "ready"], found["nodes", "trainer", "ready"]) == (1, 0)


def test_groups_are_counted_by_the_states_that_the_status_tells():
    cluster = a_published()
    told = run_status(cluster.scheduler, 0.0, run="tiny").groups
    found = values(Readings(a_config(), cluster.scheduler, LEDGER, RunTotals()))
    assert {state: found["groups", state] for state in told} == told
    assert told["sampling"] > 0


def test_nodes_are_counted_by_the_states_that_the_status_tells():
    cluster = a_published()
    told = run_status(cluster.scheduler, 0.0, run="tiny").nodes
    words = Counter((node.role, "ready" if node.state in ("working", "waiting") else node.state) for node in told)
    found = values(Readings(a_config(), cluster.scheduler, LEDGER, RunTotals()))
    assert {key[1:]: number for key, number in found.items() if key[0] == "nodes" and number} == words


def test_failures_are_counted_by_stage_never_by_their_text(scheduler):
    scheduler.failures.count("reward", "ValueError: 'a'", 2)
    scheduler.failures.count("reward", "KeyError: 'b'")
    scheduler.failures.count("a stage of tomorrow", "boom")
    found = values(Readings(a_config(), scheduler, LEDGER, RunTotals()))
    assert (found["failures_total", "reward"], found["failures_total", "other"]) == (3, 1)


def test_the_ledgers_time_is_that_of_its_transactions(scheduler):
    found = values(Readings(a_config(), scheduler, LEDGER, RunTotals()))
    assert [found[f"ledger_{name}",] for name in ("records_total", "commits_total", "commit_seconds_total")] == [
        70,
        5,
        0.25,
    ]
