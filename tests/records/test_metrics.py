"""The table of metrics keeps Prometheus' rules for names, and its labels are bounded."""

import re
from typing import get_args

from asyncrl.messages.session import ModelUse
from asyncrl.messages.words import Role, Stage
from asyncrl.records.metrics import METRICS, NODE_ROLES, STAGES, model_samples


def test_a_name_ends_with_total_exactly_if_it_is_a_counter():
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in METRICS)
    assert all(name.endswith("_total") == (metric.kind == "counter") for name, metric in METRICS.items())


def test_every_metric_is_explained_in_a_sentence():
    assert [name for name, metric in METRICS.items() if not re.fullmatch(r"[A-Z0-9].+\.", metric.meaning)] == []


def test_a_label_has_a_fixed_vocabulary_but_for_versions_and_names_of_the_run_file():
    labels = ((metric.owner, *label) for metric in METRICS.values() for label in metric.labels.items())
    unbounded = {(owner, label) for owner, label, values in labels if not values}
    assert unbounded == {("process", "version"), ("process", "python"), ("model", "model")}
    assert {"role", "node"}.isdisjoint(label for metric in METRICS.values() for label in metric.labels)


def test_every_metric_of_a_model_has_a_sample():
    samples = list(
        model_samples({"judge": ModelUse(requests=1, cached=2, repeated=3, failed=4, seconds=5.0, tokens=6)})
    )
    assert [sample.value for sample in samples] == [1, 2, 3, 4, 5, 6]
    assert [sample.name for sample in samples] == [name for name, metric in METRICS.items() if metric.owner == "model"]
    assert all(sample.labels == {"model": "judge"} for sample in samples)


def test_the_vocabularies_have_every_stage_and_role_of_the_messages():
    assert set(get_args(Stage)) < set(STAGES)
    assert set(get_args(Role)) - {"broker", "shard"} == set(NODE_ROLES)
