"""The options of asyncrl-node. Unit files and job scripts depend on them: a change that fails here breaks those."""

import importlib.metadata

import pytest
from click.testing import CliRunner

from asyncrl.cli import node
from asyncrl.cli.node import main
from asyncrl.node.process import Job

ROLLOUT = ("--role", "rollout", "--broker", "tcp://127.0.0.1:5570")


def test_the_options_are_these():
    options = {param.opts[0]: (param.required, param.default) for param in main.params if param.opts[0] != "--version"}
    assert options == {
        "--role": (True, options["--role"][1]),
        "--broker": (False, options["--broker"][1]),
        "--config": (False, options["--config"][1]),
        "--set": (False, options["--set"][1]),
        "--name": (False, options["--name"][1]),
        "--run-dir": (False, options["--run-dir"][1]),
        "--replicas": (False, options["--replicas"][1]),
        "--devices": (False, options["--devices"][1]),
        "--wait": (False, 30.0),
    }


def test_the_roles_are_these():
    assert node.ROLES == ("broker", "rollout", "reward", "trainer")


def test_version():
    result = CliRunner().invoke(main, ["--version"])
    assert importlib.metadata.version("asyncrl") in result.output


@pytest.fixture
def started(monkeypatch):
    """Names of the nodes that would run, in place of `run_process`."""
    runs: list[str] = []

    def run_process(job: Job, *, name: str) -> int:
        runs.append(name)
        return 0

    monkeypatch.setattr(node, "run_process", run_process)
    return runs


def test_a_node_needs_only_its_role_and_the_brokers_address(started):
    result = CliRunner().invoke(main, ["--role", "rollout", "--broker", "tcp://127.0.0.1:5570"])
    assert result.exit_code == 0, result.output
    (name,) = started
    assert name.startswith("rollout-")


def test_the_name_can_be_given(started):
    CliRunner().invoke(main, ["--role", "reward", "--broker", "tcp://127.0.0.1:5570", "--name", "reward-7"])
    assert started == ["reward-7"]


@pytest.mark.parametrize("option", [["--config", "x.toml"], ["--set", "seed=1"], ["--run-dir", "runs/x"]])
@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_options_of_the_broker_are_refused_elsewhere(started, role, option):
    result = CliRunner().invoke(main, ["--role", role, "--broker", "tcp://127.0.0.1:5570", *option])
    assert (result.exit_code, started) == (78, [])
    assert f"a {role} gets the configuration from it" in result.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:5570", "http://127.0.0.1", ""])
def test_a_malformed_address_is_refused(started, address):
    result = CliRunner().invoke(main, ["--role", "reward", "--broker", address])
    assert (result.exit_code, started) == (78, [])
    assert f"--broker is {address!r}: expected tcp://HOST:PORT" in result.stderr


@pytest.mark.parametrize("replicas", ["auto", "1", "16"])
def test_replicas_are_rollouts_of_one_machine(started, replicas):
    result = CliRunner().invoke(main, [*ROLLOUT, "--name", "gpu-7", "--replicas", replicas, "--devices", "0,1"])
    assert (result.exit_code, started) == (0, ["gpu-7"]), result.output


@pytest.mark.parametrize("replicas", ["0", "-1", "two", "1.5", ""])
def test_a_bad_number_of_replicas_is_refused(started, replicas):
    result = CliRunner().invoke(main, [*ROLLOUT, "--replicas", replicas])
    assert (result.exit_code, started) == (78, [])
    assert f"--replicas is {replicas!r}: expected auto or a number of at least 1" in result.stderr


def test_devices_without_replicas_are_refused(started):
    result = CliRunner().invoke(main, [*ROLLOUT, "--devices", "0"])
    assert (result.exit_code, started) == (78, [])
    assert "--devices works only with --replicas" in result.stderr


@pytest.mark.parametrize("role", ["broker", "reward", "trainer"])
def test_only_rollouts_have_replicas(started, role):
    arguments = ["--role", role, "--broker", "tcp://127.0.0.1:5570", "--replicas", "auto"]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, started) == (78, [])
    assert f"--replicas and --devices are for rollouts, not for a {role}" in result.stderr


def test_a_broker_creates_its_run_directory_with_the_configuration(started, tmp_path):
    (tmp_path / "toy.toml").write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    arguments = ["--role", "broker", "--config", str(tmp_path / "toy.toml"), "--broker", "tcp://127.0.0.1:5570"]
    result = CliRunner().invoke(main, [*arguments, "--set", f"run.dir={tmp_path}/runs"])
    assert result.exit_code == 0, result.output
    kept = (tmp_path / "runs" / "toy" / "config.toml").read_text()
    assert 'bind = "tcp://127.0.0.1:5570"' in kept


def test_a_missing_run_directory_is_refused(started, tmp_path):
    (tmp_path / "toy.toml").write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    arguments = ["--role", "broker", "--config", str(tmp_path / "toy.toml"), "--run-dir", str(tmp_path / "nowhere")]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, started) == (78, [])
    assert "no run to resume" in result.stderr
