"""conf/prometheus: every alert is quiet in a healthy run, fires for its own cause, and names metrics that exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.records.metrics import METRICS, Sample
from asyncrl.runtime.http_server import Exposition
from tests.conf.promql import Scrape, Scrapes, Vector, fires

parser = pytest.importorskip("prometheus_client.parser")
yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "conf" / "prometheus"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
NOW_S = 1_900_000_000.0
OF_PROMETHEUS = {"up"}
"""Metrics that Prometheus itself makes at each scrape."""

HEALTHY = {
    "asyncrl_ready": 1,
    "asyncrl_broker_last_step_timestamp_seconds": NOW_S - 60,
    "asyncrl_broker_nodes": 1,
    "asyncrl_broker_ledger_commits_total": 1000,
    "asyncrl_broker_ledger_commit_seconds_total": 4,
    "asyncrl_spool_disk_free_bytes": 5e11,
    "asyncrl_spool_disk_size_bytes": 1e12,
}
"""Values in a healthy run; all others are 0, and the silent and stalled nodes are none."""

CAUSES: dict[str, dict[tuple[str, ...], float]] = {
    "AsyncrlProcessDown": {("up",): 0},
    "AsyncrlNotReady": {("asyncrl_ready",): 0},
    "AsyncrlNoStep": {("asyncrl_broker_last_step_timestamp_seconds",): NOW_S - 1801},
    "AsyncrlNoRollout": {("asyncrl_broker_nodes", "rollout", "ready"): 0},
    "AsyncrlNoReward": {("asyncrl_broker_nodes", "reward", "ready"): 0},
    "AsyncrlNoTrainer": {("asyncrl_broker_nodes", "trainer", "ready"): 0},
    "AsyncrlNodeSilent": {("asyncrl_broker_nodes", "rollout", "silent"): 1},
    "AsyncrlNodeStalled": {("asyncrl_broker_nodes", "rollout", "stalled"): 1},
    "AsyncrlFailures": {("asyncrl_broker_failures_total", "reward"): 101},
    "AsyncrlRewardWorkersDie": {("asyncrl_reward_workers_replaced_total",): 6},
    "AsyncrlDiskLow": {("asyncrl_spool_disk_free_bytes",): 9e10},
    "AsyncrlLedgerSlow": {("asyncrl_broker_ledger_commit_seconds_total",): 251},
    "AsyncrlEventLoopLag": {("asyncrl_event_loop_lag_seconds",): 2.5},
    "AsyncrlFileDescriptors": {("process_max_fds",): 1},
    "AsyncrlLossNotFinite": {("asyncrl_trainer_loss",): float("nan")},
    "AsyncrlStale": {("asyncrl_broker_step_staleness_max",): 33},
    "AsyncrlTruncated": {("asyncrl_broker_step_truncated_ratio",): 0.6},
    "AsyncrlTrainerStarved": {("asyncrl_trainer_seconds_total", "idle"): 0.7 * 900},
    "AsyncrlRolloutIdle": {("asyncrl_rollout_seconds_total", "idle"): 0.7 * 900},
}
"""For each alert the one value, by metric and values of its labels, that differs from the healthy run."""


def samples(changed: dict[tuple[str, ...], float]) -> Iterator[Sample]:
    """A sample of every metric with every combination of its labels."""
    for metric in METRICS.values():
        if metric.name.startswith("process_") or metric.name == "asyncrl_build_info":
            continue
        combinations: list[tuple[str, ...]] = [()]
        for values in metric.labels.values():
            combinations = [(*before, value) for before in combinations for value in values]
        for labels in combinations:
            healthy = 0 if {"silent", "stalled"} & set(labels) else HEALTHY.get(metric.name, 0)
            value = changed.get((metric.name, *labels), healthy)
            yield Sample(metric.name, value, dict(zip(metric.labels, labels, strict=True)))


def scrape(changed: dict[tuple[str, ...], float]) -> Scrape:
    """What Prometheus has of one process after a scrape of its text."""
    text, _ = Exposition({"role": "broker", "node": "broker-0"}, lambda: samples(changed)).text()
    found: dict[str, Vector] = {"up": {frozenset({("job", "asyncrl")}): changed.get(("up",), 1)}}
    for family in parser.text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            value = changed.get((sample.name,), sample.value) if sample.name.startswith("process_") else sample.value
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = value
    return found


BEFORE: dict[tuple[str, ...], float] = {
    ("asyncrl_broker_ledger_commits_total",): 0,
    ("asyncrl_broker_ledger_commit_seconds_total",): 0,
}


def alerts(changed: dict[tuple[str, ...], float]) -> set[str]:
    scrapes = Scrapes(scrape(BEFORE), scrape(changed), NOW_S)
    return {name for name, rule in RULES.items() if fires(rule["expr"], scrapes)}


def test_a_healthy_run_raises_no_alert():
    assert alerts({}) == set()


@pytest.mark.parametrize("name", RULES)
def test_each_alert_fires_for_its_own_cause_alone(name):
    assert alerts(CAUSES[name]) == {name}


def test_there_is_a_cause_for_every_alert():
    assert set(CAUSES) == set(RULES)


def test_every_alert_names_metrics_that_exist_and_says_what_to_do():
    for name, rule in RULES.items():
        named = set(re.findall(r"\b(?:asyncrl|process|up)(?:_[a-z_]+)?\b(?!=|\")", rule["expr"]))
        assert named <= METRICS.keys() | OF_PROMETHEUS, name
        assert named, name
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_example_of_a_configuration_finds_what_processes_leave():
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (pattern,) = job["file_sd_configs"][0]["files"]
    assert job["job_name"] == "asyncrl", "the alert about processes that are down names it"
    assert re.fullmatch(r"[^*]+/\*\.json", pattern), "Prometheus allows * in the last part alone"
    assert all((FOLDER / name).is_file() for name in config["rule_files"])


@pytest.mark.parametrize(
    "expression", ["asyncrl_ready", "sum(asyncrl_ready) > 1", "1 > asyncrl_ready", 'asyncrl_ready{a=~"x"} > 1']
)
def test_an_expression_that_is_not_understood_is_refused(expression):
    with pytest.raises(ValueError, match=r"not understood|expected"):
        fires(expression, Scrapes({"asyncrl_ready": {frozenset(): 1.0}}, {"asyncrl_ready": {frozenset(): 1.0}}, 0.0))
