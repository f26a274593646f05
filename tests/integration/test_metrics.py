"""Processes of a real run are found by their files, and together they have every metric of the board."""

import json
import urllib.error
import urllib.request

import pytest

from asyncrl.records.metrics import METRICS
from tests.conf.test_grafana import NAMES
from tests.integration.conftest import TWO_ROLLOUTS

parser = pytest.importorskip("prometheus_client.parser")
pytestmark = pytest.mark.slow("whole runs of real processes")

NODES = {
    "broker-0": "broker",
    "trainer-0": "trainer",
    "reward-0": "reward",
    "rollout-0": "rollout",
    "rollout-1": "rollout",
}
OF_OTHER_RUNS = {name for name in METRICS if name.startswith(("asyncrl_rollout_container", "asyncrl_model_"))}
"""Metrics of runs with ``[environment.container]`` or ``[models]``."""


def read(address: str, page: str) -> tuple[int, str]:
    """Status and body; 0 for a process that does not answer yet."""
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_a_run_is_seen_by_prometheus_as_a_whole(start_run):
    run = start_run(TWO_ROLLOUTS, "evaluation.every_versions=2", steps=300, environment={"ASYNCRL_METRICS": "0"})
    folder = run.directory.path / "metrics"

    def addresses() -> dict[str, str]:
        files = {path.name.split(".")[1]: json.loads(path.read_text()) for path in folder.glob("*.json")}
        assert all(target["labels"] == {"run": "toy"} for (target,) in files.values())
        return {node: target["targets"][0] for node, (target,) in files.items()}

    found: dict[str, set[str]] = {}

    def scraped() -> set[str]:
        """Names of all metrics so far; the labels are those of the process."""
        for node, address in addresses().items():
            status, text = read(address, "/metrics")
            for family in parser.text_string_to_metric_families(text if status == 200 else ""):
                for sample in family.samples:
                    assert (sample.labels["node"], sample.labels["role"]) == (node, NODES[node])
                    found.setdefault(node, set()).add(sample.name)
        return set().union(*found.values())

    run.until(lambda: addresses().keys() == NODES.keys() and scraped() >= NAMES)
    assert scraped() == METRICS.keys() - OF_OTHER_RUNS, "and what the board leaves out is there too"

    run.until(lambda: all(read(address, "/readyz")[0] == 200 for address in addresses().values()))
    assert {json.loads(read(address, "/readyz")[1])["role"] for address in addresses().values()} == set(NODES.values())
    assert all(read(address, "/healthz")[0] in (200, 503) for address in addresses().values())
    for node in NODES:
        said = [json.loads(line)["event"] for line in (run.directory.logs / f"{node}.log").read_text().splitlines()]
        assert "metrics.served" in said
        assert node == "broker-0" or {"node.joined", "node.ready"} <= set(said)
