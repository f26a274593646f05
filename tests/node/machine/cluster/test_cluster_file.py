import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.node.machine.cluster.cluster_file import decode, load

TEXT = """
broker = "tcp://[fd00::1]:5570"
model = "/models/m"
[[machine]]
name = "node-1"
roles = ["broker", "trainer"]
[[machine]]
name = "node-2"
roles = ["reward"]
run = "ssh -o 'User=a b' node-2"
program = "/opt/venv/bin/asyncrl"
"""


def test_a_file_says_how_asyncrl_is_started_on_each_machine(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(TEXT)
    cluster = load(tmp_path / "cluster.toml")
    here, there = cluster.machine
    assert here.command == [sys.executable, "-m", "asyncrl"]
    assert there.command == ["ssh", "-o", "User=a b", "node-2", "/opt/venv/bin/asyncrl"]
    assert (cluster.broker_host, cluster.broker_port) == ("fd00::1", 5570)
    assert [cluster.model_of(machine) for machine in cluster.machine] == ["/models/m", ""]


def changed(**values: Any) -> dict[str, Any]:
    return {"broker": "tcp://n:1", "machine": [{"name": "a", "roles": ["trainer"]}]} | values


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"broker": "n:1"}, "broker is 'n:1': expected tcp://HOST:PORT"),
        ({"broker": "ipc:///a"}, "broker is 'ipc:///a': expected tcp://HOST:PORT"),
        ({"broker": "tcp://n:0"}, "expected a port from 1 to 65535, got 0"),
        ({"machines": []}, "unknown key 'machines': did you mean 'machine'?"),
        ({"machine": []}, "machine: expected a list of length >= 1"),
        ({"machine": [{"name": "a", "roles": ["cook"]}]}, "machine"),
        ({"machine": [{"name": "a", "roles": ["reward"]}] * 2}, "2 machines have the name 'a'"),
        (
            {"machine": [{"name": name, "roles": ["broker"]} for name in "ab"]},
            "a and b have the role broker: expected one machine at most",
        ),
        (
            {"machine": [{"name": "a", "roles": ["reward"], "run": "ssh '"}]},
            "machine 'a': run or program cannot be split into words: No closing quotation",
        ),
    ],
)
def test_a_mistake_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode(changed(**values))
    assert sentence in str(raised.value)
