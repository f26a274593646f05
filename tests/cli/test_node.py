"""The options of asyncrl-node. Unit files and job scripts depend on them: a change that fails here breaks those."""

import os
import socket

import pytest
from click.testing import CliRunner

from asyncrl.cli import node
from asyncrl.cli.node import main
from asyncrl.runtime.local_address import INTERFACE_VARIABLE
from asyncrl.runtime.process import Job
from asyncrl.version import VERSION

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
        "--secret": (False, options["--secret"][1]),
        "--key": (False, options["--key"][1]),
        "--keys": (False, options["--keys"][1]),
        "--allow-code": (False, options["--allow-code"][1]),
        "--interface": (False, options["--interface"][1]),
        "--replicas": (False, options["--replicas"][1]),
        "--devices": (False, options["--devices"][1]),
        "--weights": (False, "collective"),
        "--dir": (False, options["--dir"][1]),
        "--bind": (False, options["--bind"][1]),
        "--fetch": (False, options["--fetch"][1]),
        "--metrics": (False, options["--metrics"][1]),
        "--metrics-open": (False, options["--metrics-open"][1]),
        "--metrics-targets": (False, options["--metrics-targets"][1]),
        "--traces": (False, options["--traces"][1]),
        "--log-format": (False, "auto"),
        "--wait": (False, 30.0),
    }


@pytest.mark.parametrize("environment", [{}, {"ASYNCRL_WEIGHTS": "spool"}])
def test_weights_reach_a_rollout_the_way_it_is_told(monkeypatch, environment):
    told = []

    async def run_rollout(node, stopping, *, weights, may_fetch):
        told.append(weights)

    monkeypatch.setattr("asyncrl.runtime.rollout.run_rollout", run_rollout)
    option = [] if environment else ["--weights", "spool"]
    command = ["--role", "rollout", "--broker", "ipc:///nowhere", *option]
    result = CliRunner().invoke(main, command, env=environment)
    assert (result.exit_code, told) == (0, ["spool"]), result.output


def test_only_a_rollout_chooses_the_way_of_its_weights():
    command = ["--role", "reward", "--broker", "ipc:///nowhere", "--weights", "spool"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 78
    assert "--weights (ASYNCRL_WEIGHTS) is spool: that is for rollouts, not for a reward" in result.output


def test_the_roles_are_these():
    assert node.ROLES == ("broker", "rollout", "reward", "trainer", "spool")


def test_version():
    result = CliRunner().invoke(main, ["--version"])
    assert VERSION in result.output


@pytest.fixture
def started(monkeypatch):
    """Names of the nodes that would run, in place of `run_process`."""
    runs: list[str] = []

    def run_process(job: Job, *, name: str, **_: object) -> int:
        runs.append(name)
        return 0

    monkeypatch.setattr(node, "run_process", run_process)
    return runs


def test_a_node_needs_only_its_role_and_the_brokers_address(started):
    result = CliRunner().invoke(main, ["--role", "rollout", "--broker", "tcp://127.0.0.1:5570"])
    assert result.exit_code == 0, result.output
    (name,) = started
    assert name.startswith("rollout-")


def test_a_trainer_keeps_its_name_when_it_is_started_again(started):
    """Under another name it would be refused until the run has given up the one that was killed."""
    for _ in range(2):
        CliRunner().invoke(main, ["--role", "trainer", "--broker", "tcp://127.0.0.1:5570"])
    assert started == [f"trainer-{socket.gethostname()}"] * 2


def test_the_one_broker_of_a_run_keeps_its_name():
    """Its file for Prometheus is then replaced by its next start after it was killed."""
    assert node.default_name("broker", None) == "broker"


def test_the_name_can_be_given(started):
    CliRunner().invoke(main, ["--role", "reward", "--broker", "tcp://127.0.0.1:5570", "--name", "reward-7"])
    assert started == ["reward-7"]


def test_a_spool_keeps_its_name_and_needs_a_folder(started):
    spool = ["--role", "spool", "--broker", "tcp://127.0.0.1:5570"]
    assert CliRunner().invoke(main, [*spool, "--dir", "payloads"]).exit_code == 0
    assert started == [f"spool-{socket.gethostname()}"]
    result = CliRunner().invoke(main, spool)
    assert (result.exit_code, "--dir FOLDER is missing" in result.stderr) == (78, True)
    result = CliRunner().invoke(main, [*spool, "--dir", "payloads", "--bind", "tcp://10.0.0.7"])
    assert (result.exit_code, "--bind is 'tcp://10.0.0.7': expected tcp://HOST:PORT" in result.stderr) == (78, True)
    result = CliRunner().invoke(main, [*ROLLOUT, "--dir", "payloads"])
    assert (result.exit_code, "--dir and --bind are for spools, not for a rollout" in result.stderr) == (78, True)


@pytest.mark.parametrize("option", [["--config", "x.toml"], ["--set", "seed=1"]])
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


@pytest.mark.parametrize("role", ["broker", "reward", "trainer"])
def test_only_rollouts_have_replicas(started, role):
    arguments = ["--role", role, "--broker", "tcp://127.0.0.1:5570", "--replicas", "auto"]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, started) == (78, [])
    assert f"--replicas and --devices are for rollouts, not for a {role}" in result.stderr


@pytest.mark.parametrize("role", ["rollout", "trainer"])
def test_an_interface_is_for_this_node_and_its_children(started, monkeypatch, role):
    monkeypatch.setenv(INTERFACE_VARIABLE, "eth0")
    result = CliRunner().invoke(main, ["--role", role, "--broker", "tcp://10.0.0.1:5570", "--interface", "10.1.0.0/16"])
    assert (result.exit_code, len(started)) == (0, 1), result.output
    assert os.environ[INTERFACE_VARIABLE] == "10.1.0.0/16"


@pytest.mark.parametrize("role", ["broker", "reward"])
def test_a_role_without_weights_has_no_interface(started, role):
    result = CliRunner().invoke(main, ["--role", role, "--broker", "tcp://127.0.0.1:5570", "--interface", "eth0"])
    assert (result.exit_code, started) == (78, [])
    assert f"--interface is for rollouts and trainers, which move weights, not for a {role}" in result.stderr


def test_a_malformed_interface_is_refused(started):
    result = CliRunner().invoke(main, [*ROLLOUT, "--interface", "10.1.0.0/99"])
    assert (result.exit_code, started) == (78, [])
    assert "--interface is '10.1.0.0/99': expected a network interface such as eth0" in result.stderr


def test_metrics_are_for_this_machine_unless_others_are_let_in(started):
    open_to_all = [*ROLLOUT, "--metrics", "0.0.0.0:9400"]
    result = CliRunner().invoke(main, open_to_all)
    assert (result.exit_code, "add --metrics-open" in result.stderr, started) == (78, True, [])
    assert CliRunner().invoke(main, [*open_to_all, "--metrics-open"]).exit_code == 0
    by_variables = {"ASYNCRL_METRICS": "0.0.0.0:9400", "ASYNCRL_METRICS_OPEN": "1"}
    assert CliRunner().invoke(main, ROLLOUT, env=by_variables).exit_code == 0
    assert CliRunner().invoke(main, ROLLOUT, env={"ASYNCRL_METRICS": "nine"}).exit_code == 78


@pytest.mark.parametrize("role", ["rollout", "reward", "trainer", "spool"])
def test_only_a_broker_sends_traces(started, role):
    result = CliRunner().invoke(main, ["--role", role, "--broker", "tcp://127.0.0.1:5570", "--traces"])
    assert (result.exit_code, started) == (78, [])
    assert f"--traces is for the broker, which sees every stage of a trajectory, not for a {role}" in result.stderr
