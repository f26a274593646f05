import asyncio
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.runtime.machine import DoctorReport
from asyncrl.tools.cluster.judgement import Machine, decode, judge
from asyncrl.tools.cluster.probe import Answer, Facts, Look, NoAnswer
from asyncrl.tools.cluster.survey import ask, survey
from asyncrl.wire.keys.key import create_key, new_key
from tests.cluster.network import Network, obstacle

LOOK = Look(broker_host="127.0.0.1", broker_port=1)


def machine(run: str, program: str = "") -> Machine:
    return Machine(name="a", roles=["reward"], run=run, program=program)


def asked(run: str, program: str = "", deadline_s: float = 60.0) -> Answer | NoAnswer:
    return asyncio.run(ask(machine(run, program), LOOK, deadline_s))


def shell(script: str) -> str:
    """Prefix that runs a script in place of the command."""
    return shlex.join(["sh", "-c", script])


def test_a_machine_answers_through_its_prefix_after_a_greeting() -> None:
    greeting = shlex.join(["sh", "-c", 'echo "Welcome to node 1"; exec "$@"', "sh"])
    assert isinstance(asked(greeting), Facts)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (shell("echo Warning >&2; echo no such host >&2; exit 255"), "ended with exit code 255: no such host"),
        (shell("exit 0"), "ended with exit code 0"),
        (shell("echo '{}'"), "gave an answer that asyncrl here does not understand: Object missing required"),
        (shell("head -c 2000000 /dev/zero"), "gave an answer that asyncrl here does not understand"),
        ("/nonexistent/ssh", "cannot run `/nonexistent/ssh"),
    ],
)
def test_a_command_without_an_answer_is_described(run: str, reason: str) -> None:
    found = asked(run)
    assert isinstance(found, NoAnswer)
    assert reason in found.reason


def test_a_command_that_hangs_ends_at_its_deadline_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    found = asked(shell(f"echo locked >&2; sleep 1000 & echo $! > {pid_file}; wait"), deadline_s=1.0)
    assert isinstance(found, NoAnswer)
    assert found.reason.endswith("gave no answer within 1 s: locked")
    child = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    deadline_s = time.monotonic() + 20.0
    while not is_dead(child):  # The kernel delivers SIGKILL when it comes to it.
        assert time.monotonic() < deadline_s, child.read_text()


def is_dead(stat: Path) -> bool:
    """True for a process that is gone, or a zombie."""
    try:
        return stat.read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_question_is_not_on_the_command_line() -> None:
    program = shlex.join([sys.executable, "-c", "import sys; sys.exit(' '.join(sys.argv[1:]))"])
    found = asked("", program)
    assert isinstance(found, NoAnswer)
    assert found.reason.endswith("ended with exit code 1: doctor --probe")


# ── test survey ───────────────────────────────────────────────────────────────────────────────
# Machines are namespaces with addresses and disks of their own, or this machine under several commands.

ADDRESS = "10.77.0"
ROLES = (["broker", "reward"], ["trainer"], ["rollout"])


def checked(*machines: dict[str, Any], broker: str, **settings: Any) -> DoctorReport:
    raw = {"broker": broker, "machine": list(machines), "transfer_s": 0.05} | settings
    return judge(asyncio.run(survey(decode(raw))))


def states(diagnosis: DoctorReport, name: str) -> dict[str, str]:
    """Section -> state of the lines with a name."""
    return {line.section: line.state for line in diagnosis.lines if line.name == name}


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Three machines with disks of their own: n1, n2 and n3."""
    if reason := obstacle():
        pytest.skip(f"this host cannot have a network of machines: {reason}")
    with Network() as made:
        made.add("n1", "n2", "n3")
        made.boot()
        for machine, roles in zip(made.machines.values(), ROLES, strict=True):
            machine.path("/root/model").mkdir()
            machine.path("/root/model/config.json").write_text("{}")
            create_key(machine.path("/root/node.key"), new_key(machine.name, tuple(set(roles) - {"broker"}), bytes(32)))
        yield made


def cluster(network: Network) -> list[dict[str, Any]]:
    named = zip(network.machines.values(), ROLES, strict=True)
    return [{"name": m.name, "roles": roles, "run": m.prefix(), "key": "/root/node.key"} for m, roles in named]


@pytest.mark.slow("commands on several machines")
def test_three_machines_that_fit_are_found_fit(network: Network) -> None:
    found = checked(*cluster(network), broker=f"tcp://{ADDRESS}.1:5570", model="/root/model")
    assert found.problems == []
    assert states(found, "broker") == states(found, "key") == dict.fromkeys(("n1", "n2", "n3"), "good")
    assert states(found, "model") == dict.fromkeys(("n1", "n2", "n3"), "good")
    interfaces = {line.section: line.what for line in found.lines if line.name == "interface"}
    assert interfaces == {f"n{number}": f"eth0, {ADDRESS}.{number}" for number in (1, 2, 3)}
    assert [line.name for line in found.lines if line.section == "transfers"] == ["n2 to n3", "n3 to n2"]


@pytest.mark.slow("commands on several machines")
def test_machines_of_an_ipv6_network_are_checked_too(network: Network) -> None:
    found = checked(*cluster(network), broker="tcp://[fd77::1]:5570")
    assert found.problems == []
    assert "eth0, fd77::2" in {line.what for line in found.lines if line.name == "interface"}


@pytest.mark.slow("commands on several machines")
def test_another_model_under_the_same_path_is_named(network: Network) -> None:
    config = network.machines["n3"].path("/root/model/config.json")
    config.write_text('{"layers": 2}')
    found = checked(*cluster(network), broker=f"tcp://{ADDRESS}.1:5570", model="/root/model")
    config.write_text("{}")
    (problem,) = found.problems
    assert problem.startswith("n3 has another model than n1: SHA-256 of /root/model/config.json is ")


@pytest.mark.slow("commands on several machines")
def test_an_address_of_another_machine_is_no_address_for_the_broker(network: Network) -> None:
    found = checked(*cluster(network), broker=f"tcp://{ADDRESS}.2:5570")
    assert f"n1 cannot listen on tcp://{ADDRESS}.2:5570 (Cannot assign requested address)" in found.problems[0]


@pytest.mark.long("a machine whose command hangs is named below")
def test_a_machine_that_is_cut_off_is_named_and_the_others_are_checked(network: Network) -> None:
    network.machines["n3"].partition()
    found = checked(*cluster(network), broker=f"tcp://{ADDRESS}.1:5570")
    network.machines["n3"].heal()
    assert states(found, "broker") == {"n1": "good", "n2": "good", "n3": "bad"}
    assert found.problems[0].startswith(f"n3 cannot connect to tcp://{ADDRESS}.1:5570 (")


@pytest.mark.long("a machine whose command hangs is named below")
def test_two_machines_that_cannot_connect_are_named(network: Network) -> None:
    """Both reach the broker, so that only the transfer shows it."""
    with network.separated("n2", "n3"):
        found = checked(*cluster(network), broker=f"tcp://{ADDRESS}.1:5570")
    assert {line.name for line in found.lines if line.state == "bad"} == {"n2 to n3", "n3 to n2"}
    assert found.problems[0].startswith(f"n2 cannot send to n3 at {ADDRESS}.3 (")


# ── this machine ────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_broker_that_runs_already_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = checked({"name": "a", "roles": ["broker"]}, broker=f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert found.problems == []


def test_the_brokers_port_is_free_after_the_check() -> None:
    port = free_port()
    assert checked({"name": "a", "roles": ["broker"]}, broker=f"tcp://127.0.0.1:{port}").is_fit
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.slow("waits for machines that do not answer")
@pytest.mark.parametrize("hanging", ["broker", pytest.param("reward", marks=pytest.mark.long("waits once more"))])
def test_a_machine_whose_command_hangs_is_named_and_the_others_are_checked(hanging: str) -> None:
    found = checked(
        {"name": "hangs", "roles": [hanging], "run": "sh -c 'sleep 1000'"},
        {"name": "works", "roles": ["spool"]},
        broker=f"tcp://127.0.0.1:{free_port()}",
        deadline_s=15,
    )
    assert states(found, "answers") == {"hangs": "bad", "works": "good"}
    assert "hangs does not answer: `sh -c 'sleep 1000' " in found.problems[0]
    assert "gave no answer within 15 s" in found.problems[0]
