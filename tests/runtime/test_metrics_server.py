"""A process tells its metrics and its health to the machine it runs on, and to others only if it is told to."""

import asyncio
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from asyncrl.errors import ConfigError
from asyncrl.records.metrics import Sample
from asyncrl.records.metrics_targets import read_from
from asyncrl.runtime.metrics_server import (
    MAX_LAG_S,
    MetricsOptions,
    health,
    metrics_options,
    metrics_served,
    readiness,
)
from asyncrl.runtime.service_manager import ServiceManager

LABELS = {"role": "rollout", "node": "rollout-0"}


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("9400", "127.0.0.1", 9400), ("0", "127.0.0.1", 0), ("localhost:9400", "localhost", 9400), ("[::1]:1", "::1", 1)],
)
def test_a_port_alone_is_one_of_the_loopback_interface(address, host, port):
    assert metrics_options(address, is_open=False) == MetricsOptions(host, port)


@pytest.mark.parametrize("address", ["0.0.0.0:9400", "*:9400", "10.0.0.7:9400", "[::]:9400", "gpu-7:9400"])
def test_an_address_that_others_reach_is_served_only_if_that_is_said(address):
    with pytest.raises(ConfigError, match=r"without a key: take 127\.0\.0\.1:9400, or add --metrics-open"):
        metrics_options(address, is_open=False)
    options = metrics_options(address, is_open=True)
    assert options is not None
    assert options.port == 9400
    assert "--metrics-open" in options.as_options()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("http://x", "expected PORT or HOST:PORT"),
        ("", "expected PORT or HOST:PORT"),
        ("nine", "expected PORT or HOST:PORT"),
        ("70000", "expected a port from 0 to 65535"),
    ],
)
def test_what_is_no_address_is_refused(address, sentence):
    with pytest.raises(ConfigError, match=sentence):
        metrics_options(address, is_open=False)


def test_nothing_is_served_unless_asked_for():
    assert metrics_options(None, is_open=False) is None
    with pytest.raises(ConfigError, match=r"--metrics-open \(ASYNCRL_METRICS_OPEN\) is given without --metrics"):
        metrics_options(None, is_open=True)


def test_prometheus_is_told_in_the_run_directory_or_where_the_operator_says(tmp_path):
    options = metrics_options("0", is_open=False, run=tmp_path / "try-7")
    assert options == MetricsOptions("127.0.0.1", 0, tmp_path / "try-7" / "metrics", "try-7")
    options = metrics_options("0", is_open=False, run=tmp_path / "try-7", targets=tmp_path / "all")
    assert options == MetricsOptions("127.0.0.1", 0, tmp_path / "all", "try-7")


def test_children_take_the_next_ports_or_free_ones():
    assert MetricsOptions("::1", 9400).of_child(3).as_options() == ["--metrics", "[::1]:9403"]
    assert MetricsOptions("127.0.0.1", 0).of_child(3).as_options() == ["--metrics", "127.0.0.1:0"]
    told = MetricsOptions("127.0.0.1", 9400, Path("targets"), "try-7").of_child(1).as_options()
    assert told == ["--metrics", "127.0.0.1:9401", "--metrics-targets", "targets"]


def test_a_service_is_told_by_its_environment():
    assert MetricsOptions("127.0.0.1", 9400).as_variables() == {"ASYNCRL_METRICS": "127.0.0.1:9400"}
    told = {"ASYNCRL_METRICS": "0.0.0.0:9400", "ASYNCRL_METRICS_OPEN": "1"}
    assert MetricsOptions("0.0.0.0", 9400).as_variables() == told


def test_health_is_that_of_the_event_loop():
    assert health(MAX_LAG_S).status is HTTPStatus.OK
    blocked = health(MAX_LAG_S + 1)
    assert (blocked.status, json.loads(blocked.body)["event_loop_lag_s"]) == (HTTPStatus.SERVICE_UNAVAILABLE, 6.0)


def test_a_process_is_ready_while_it_serves_the_run_and_says_what_it_does_otherwise():
    manager = ServiceManager()

    def now() -> tuple[int, str, str]:
        response = readiness(manager, LABELS)
        body = json.loads(response.body)
        return response.status, body["state"], body["status"]

    assert now() == (503, "starting", "starting")
    manager.waiting("waiting for the broker at tcp://127.0.0.1:5570")
    assert now() == (503, "waiting", "waiting for the broker at tcp://127.0.0.1:5570")
    manager.starting("loading the model")
    assert now() == (503, "starting", "loading the model")
    manager.ready(lambda: "v3, 8 completions in hand")
    assert now() == (200, "ready", "v3, 8 completions in hand")
    manager.waiting("waiting for the broker at tcp://127.0.0.1:5570")
    assert now() == (503, "waiting", "waiting for the broker at tcp://127.0.0.1:5570")
    manager.ready(lambda: "v3")
    assert now() == (200, "ready", "v3")
    manager.stopping("told to stop: leaving the run")
    assert now() == (503, "stopping", "told to stop: leaving the run")


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_pages_are_served_and_prometheus_finds_them(tmp_path):
    async def main():
        manager = ServiceManager()
        options = MetricsOptions("127.0.0.1", 0, tmp_path, "try-7")
        async with metrics_served(options, LABELS, manager) as address:
            with read_from(lambda: [Sample("asyncrl_rollout_slots", 8)]):
                found = {
                    path: await asyncio.to_thread(fetch, address, path)
                    for path in ("/metrics", "/healthz", "/readyz", "/")
                }
            target = json.loads((tmp_path / "try-7.rollout-0.json").read_text())
            return found, target[0]["targets"] == [address]

    found, is_found = asyncio.run(main())
    assert is_found
    assert {path: status for path, (status, _) in found.items()} == {
        "/metrics": 200,
        "/healthz": 200,
        "/readyz": 503,
        "/": 404,
    }
    lines = found["/metrics"][1].splitlines()
    assert 'asyncrl_rollout_slots{node="rollout-0",role="rollout"} 8.0' in lines
    assert 'asyncrl_ready{node="rollout-0",role="rollout"} 0.0' in lines
