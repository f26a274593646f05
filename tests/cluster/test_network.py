"""Machines of a network have everything for themselves, reach each other, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.line import Conditions
from tests.cluster.machine import Machine
from tests.cluster.namespace import ROOT, CommandFailed
from tests.cluster.network import Network

pytestmark = pytest.mark.usefixtures("machines_permitted")

ECHO = """
import socket, sys
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data)
"""
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as peer:
    began_s = time.monotonic()
    peer.sendall(b"x")
    assert peer.recv(1) == b"x"
    print(time.monotonic() - began_s)
"""


@pytest.fixture(scope="module")
def network(machines_permitted: None) -> Iterator[Network]:
    with Network() as network:
        network.add("alpha", "beta")
        network.add("far", conditions=Conditions(delay_s=0.05))
        network.boot()
        yield network


@pytest.fixture
def alpha(network: Network) -> Machine:
    return network.machines["alpha"]


@pytest.fixture
def beta(network: Network) -> Machine:
    return network.machines["beta"]


@pytest.fixture
def echo(beta: Machine) -> Iterator[None]:
    """An echo server on ``beta``."""
    server = beta.start("echo.log", sys.executable, "-c", ECHO)
    server.until_ready()
    yield
    server.end()


def round_trip_s(asker: Machine, host: str, seconds: float = 5.0) -> float:
    return float(asker.run(sys.executable, "-c", ASK, host, str(seconds)))


@pytest.mark.usefixtures("echo")
def test_machines_reach_each_other_by_ipv4_ipv6_and_name(alpha: Machine, beta: Machine) -> None:
    for host in (beta.ipv4, beta.ipv6, beta.name):
        assert round_trip_s(alpha, host) < 5.0


@pytest.mark.usefixtures("echo")
def test_a_line_delays_all_traffic_both_ways(network: Network, beta: Machine) -> None:
    assert round_trip_s(network.machines["far"], beta.ipv4) >= 0.1


@pytest.mark.usefixtures("echo")
def test_a_partitioned_machine_hears_nothing_until_it_is_healed(alpha: Machine, beta: Machine) -> None:
    beta.partition()
    with pytest.raises(CommandFailed, match="timed out"):
        round_trip_s(alpha, beta.ipv4, seconds=0.5)
    assert "state UP" in beta.run("ip", "link", "show", "eth0")
    beta.heal()

    assert round_trip_s(alpha, beta.ipv4) < 5.0


@pytest.mark.usefixtures("echo")
def test_separated_machines_reach_all_others_but_not_each_other(
    network: Network, alpha: Machine, beta: Machine
) -> None:
    with network.separated("alpha", "beta"):
        with pytest.raises(CommandFailed, match="timed out"):
            round_trip_s(alpha, beta.ipv4, seconds=0.5)
        assert round_trip_s(network.machines["far"], beta.ipv4) < 5.0

    assert round_trip_s(alpha, beta.ipv4) < 5.0


def test_a_machine_has_its_own_name_and_knows_the_others(alpha: Machine, beta: Machine) -> None:
    assert alpha.run("hostname") == "alpha\n"
    assert alpha.run("getent", "ahostsv4", "alpha").split()[0] == "127.0.1.1"
    assert alpha.run("getent", "ahostsv4", "beta").split()[0] == beta.ipv4


@pytest.mark.parametrize("folder", ["/root", "/tmp", "/dev/shm"])
def test_machines_share_no_folder_that_can_be_written(alpha: Machine, beta: Machine, folder: str) -> None:
    alpha.run("touch", f"{folder}/of-alpha")

    assert "of-alpha" in alpha.run("ls", folder)
    assert "of-alpha" not in beta.run("ls", folder)
    assert not Path(folder, "of-alpha").exists()


@pytest.mark.parametrize("folder", ["/", "/etc", "/usr", str(ROOT), sys.prefix])
def test_everything_else_is_read_only(alpha: Machine, folder: str) -> None:
    with pytest.raises(CommandFailed, match="Read-only file system"):
        alpha.run("touch", f"{folder}/of-alpha")


def test_a_machine_sees_no_process_of_another(alpha: Machine, beta: Machine) -> None:
    sleeper = beta.start("sleep.log", "sh", "-c", "echo ready; exec sleep 300")
    sleeper.until_ready()

    assert "sleep" in beta.run("ps", "ax")
    assert "sleep" not in alpha.run("ps", "ax")
    sleeper.end()


def test_no_process_survives_the_power_and_the_disk_does(alpha: Machine) -> None:
    sleeper = alpha.start("sleep.log", "sh", "-c", "nohup setsid sleep 300 & echo ready; exec sleep 300")
    sleeper.until_ready()
    alpha.run("sh", "-c", "echo kept > /root/file; echo lost > /dev/shm/file")
    alpha.power_off()
    assert sleeper.wait(10) != 0

    alpha.boot()
    assert alpha.run("cat", "/root/file") == alpha.path("/root/file").read_text() == "kept\n"
    assert alpha.run("ls", "/dev/shm") == ""
    assert "sleep" not in alpha.run("ps", "ax")


def test_a_command_that_takes_too_long_is_killed(alpha: Machine) -> None:
    with pytest.raises(CommandFailed, match=r"took more than 0.2 s"):
        alpha.run("sleep", "4321", seconds=0.2)
    assert "4321" not in alpha.run("ps", "ax")


def test_a_signal_reaches_the_process_and_its_exit_code_comes_back(alpha: Machine) -> None:
    sleeper = alpha.start("sleep.log", "sleep", "300")
    sleeper.signal(signal.SIGTERM)

    assert sleeper.wait(10) == -signal.SIGTERM
    assert alpha.start("exit.log", "sh", "-c", "echo out; exit 7").wait(10) == 7
    assert (alpha.logs / "exit.log").read_text() == "out\n"


OWNER = """
import sys, time
from tests.cluster.line import Conditions
from tests.cluster.network import Network
with Network() as network:
    network.add("a"); network.add("b", conditions=Conditions())
    network.boot()
    for machine in network.machines.values():
        machine.start("sleep.log", "sleep", "87654")
    print(network.folder, flush=True)
    time.sleep(300)
"""


def test_nothing_survives_a_kill_of_the_owner() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.is_dir()
        owner.kill()
    deadline_s = time.monotonic() + 20
    while left := users_of(folder) + users_of("87654"):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)
    with Network():
        assert not folder.exists()


def users_of(text: str | Path) -> list[str]:
    """Command lines with ``text`` in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(text).encode() in line:
            found.append(line.replace(b"\0", b" ").decode())
    return found
