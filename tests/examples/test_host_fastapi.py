"""examples/host_fastapi.py: a web service whose engine is the only rollout of a run."""

import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from asyncrl.records.run_directory import RunDirectory
from tests.examples.conftest import StartNodes, load_example

DEADLINE_S = 300.0
BREAK_S = 1.0
"""Time that users leave between two requests: rollouts sample in it alone."""


def test_its_health_is_well_without_a_broker(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", str(toy / "model"))
    monkeypatch.setenv("BROKER", f"ipc://{tmp_path}/nobody")

    with TestClient(load_example("host_fastapi").app()) as client:
        assert client.get("/complete", params={"text": "How many now?"}).status_code == 200
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        assert answer.json()["rollout"]["state"] == "waiting_for_broker"


@pytest.mark.slow("whole runs of real processes")
def test_it_serves_its_own_requests_while_it_samples_for_the_run(
    toy: Path, tmp_path: Path, start_nodes: StartNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", str(toy / "model"))
    monkeypatch.setenv("BROKER", start_nodes("reward", "trainer", steps=2))
    directory = RunDirectory(tmp_path / "run")

    with TestClient(load_example("host_fastapi").app()) as client:
        deadline_s = time.monotonic() + DEADLINE_S
        while (summary := directory.read_summary()) is None:
            assert client.get("/complete", params={"text": "How many now?"}).status_code == 200
            assert client.get("/health").status_code == 200
            assert time.monotonic() < deadline_s
            time.sleep(BREAK_S)
    assert (summary.status, summary.steps) == ("finished", 2)
