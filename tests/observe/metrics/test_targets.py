"""Prometheus finds a process by a file in the run directory, for as long as the process runs."""

import json

import pytest

from asyncrl.errors import ConfigError
from asyncrl.observe.metrics.targets import discoverable


def test_a_process_is_a_target_of_its_run_while_it_runs(tmp_path):
    with discoverable(tmp_path / "metrics", "try-7", "rollout-0", "127.0.0.1:9403") as path:
        assert path == tmp_path / "metrics" / "try-7.rollout-0.json"
        assert json.loads(path.read_text()) == [{"targets": ["127.0.0.1:9403"], "labels": {"run": "try-7"}}]
        assert [each.name for each in path.parent.iterdir()] == ["try-7.rollout-0.json"]
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "metrics").write_text("a file")
    sentence = r"cannot write .*metrics/broker-0\.json, which tells Prometheus"
    folder = tmp_path / "metrics"
    with pytest.raises(ConfigError, match=sentence), discoverable(folder, "", "broker-0", "127.0.0.1:9400"):
        raise AssertionError("not reached")


def test_without_the_name_of_a_run_there_is_no_label(tmp_path):
    with discoverable(tmp_path, "", "gpu1-rollout", "10.0.0.7:9400") as path:
        assert path == tmp_path / "gpu1-rollout.json"
        assert json.loads(path.read_text()) == [{"targets": ["10.0.0.7:9400"], "labels": {}}]
