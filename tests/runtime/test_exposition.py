"""The text is what Prometheus' own parser reads; what the table does not have is a bug, and says so."""

import sys

import pytest

from asyncrl.errors import BrokenInvariant, ConfigError
from asyncrl.records.metrics import METRICS, Sample
from asyncrl.runtime.http_server import Exposition, require_client

parser = pytest.importorskip("prometheus_client.parser")
openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")

LABELS = {"role": "reward", "node": 'odd "name"\\'}
SAMPLES = [
    Sample("asyncrl_ready", True),
    Sample("asyncrl_reward_failures_total", 2, {"stage": "reward"}),
    Sample("asyncrl_reward_failures_total", 5, {"stage": "payload"}),
    Sample("asyncrl_trainer_loss", float("nan")),
]


def test_the_parser_of_prometheus_reads_names_types_labels_and_values():
    body, content_type = Exposition(LABELS, lambda: SAMPLES).text()
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in parser.text_string_to_metric_families(body.decode())}
    failures = families["asyncrl_reward_failures"]
    assert failures.type == "counter"
    assert {(sample.labels["stage"], sample.value) for sample in failures.samples} == {("reward", 2), ("payload", 5)}
    assert all(sample.labels.items() >= LABELS.items() for family in families.values() for sample in family.samples)
    assert families["asyncrl_ready"].samples[0].value == 1.0
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6


def test_openmetrics_is_spoken_to_those_who_ask_for_it():
    body, content_type = Exposition(LABELS, lambda: SAMPLES[:3]).text("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert "asyncrl_reward_failures" in {f.name for f in openmetrics.text_string_to_metric_families(body.decode())}


def test_the_operating_systems_metrics_are_those_of_the_table():
    body, _ = Exposition(LABELS, list).text()
    names = {s.name for family in parser.text_string_to_metric_families(body.decode()) for s in family.samples}
    assert names == {name for name in METRICS if name.startswith("process_")} | {"asyncrl_build_info"}


@pytest.mark.parametrize(
    "sample",
    [
        Sample("asyncrl_reward_unheard_of", 1),
        Sample("process_open_fds", 1),
        Sample("asyncrl_reward_failures_total", 1),
        Sample("asyncrl_reward_failures_total", 1, {"stage": "ValueError: no number in 'x'"}),
        Sample("asyncrl_ready", 1, {"stage": "reward"}),
    ],
)
def test_a_sample_that_is_not_in_the_table_is_a_bug(sample):
    with pytest.raises(BrokenInvariant, match=sample.name):
        Exposition(LABELS, lambda: [sample]).text()


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"--metrics needs prometheus_client: pip install 'asyncrl\[metrics\]'"):
        require_client()
