"""A service manager hears from a process as long as its event loop runs."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.runtime.service_manager import ALARM_VARIABLE, ServiceManager, report_to, service_manager


class Listener:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(30)
        self.state = ""
        """Last line of the last report."""

    def heard(self) -> list[str]:
        """Lines of the next report, without the state."""
        *lines, state = self.socket.recv(4096).decode().splitlines()
        self.state = state
        return lines


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path) -> Iterator[tuple[str, Listener]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@asyncrl-test-{os.getpid()}"
    listener = Listener(address)
    yield address, listener
    listener.socket.close()


def test_a_report_names_the_phase_and_the_status(manager):
    address, listener = manager
    process = ServiceManager(address, watchdog_s=30)
    process.waiting("waiting for\nthe broker")
    assert listener.heard() == ["EXTEND_TIMEOUT_USEC=120000000", "STATUS=waiting for the broker"]
    process.ready(lambda: "v41, 3 in hand", stop_s=45)
    assert listener.heard() == ["READY=1", "WATCHDOG=1", "STATUS=v41, 3 in hand"]
    process.waiting("waiting for the broker")
    assert listener.heard() == ["READY=1", "WATCHDOG=1", "STATUS=waiting for the broker"], "it stays ready"
    process.stopping("told to stop")
    assert listener.heard() == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=75000000", "STATUS=told to stop"]
    process.stopping("ending")
    process.ready(lambda: "v42")
    assert listener.heard() == ["STATUS=v42"], "it told once that it stops, and is not ready again"


def test_a_report_tells_a_process_that_waits_again_from_one_that_works(manager):
    address, listener = manager
    process = ServiceManager(address)
    for report, state in (
        (lambda: process.waiting("waiting for the broker"), "waiting"),
        (lambda: process.starting("loading"), "starting"),
        (lambda: process.ready(lambda: "v1"), "ready"),
        (lambda: process.waiting("waiting for the broker"), "waiting"),
        (lambda: process.starting("loading again"), "waiting"),
        (lambda: process.stopping("told to stop"), "stopping"),
    ):
        report()
        listener.heard()
        assert listener.state == f"X_STATE={state}"


def test_a_process_with_nothing_to_do_is_ready_before_it_ends(manager):
    """systemd calls an end before READY=1 a failure, whatever the exit code."""
    address, listener = manager
    process = ServiceManager(address)
    process.done()
    process.stopping("ending")
    assert listener.heard()[0] == "READY=1"
    assert listener.heard()[0] == "STOPPING=1"


def test_without_a_watchdog_none_is_fed(manager):
    address, listener = manager
    ServiceManager(address).ready(lambda: "v1")
    assert listener.heard() == ["READY=1", "STATUS=v1"]


@pytest.mark.parametrize(("watchdog_s", "alarm_s", "interval_s"), [(0, 0, 10), (4, 0, 2), (60, 0, 10), (60, 6, 3)])
def test_reports_come_at_half_of_the_watchdogs_time(watchdog_s, alarm_s, interval_s):
    class Enough(Exception): ...

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise Enough

    process = ServiceManager(watchdog_s=watchdog_s, alarm_s=alarm_s, set_alarm=lambda _: None)
    with pytest.raises(Enough):
        asyncio.run(process.keep_informed(sleep))
    assert slept == [interval_s] * 3


def test_its_variables_are_taken_so_that_no_child_reports_for_this_process(manager):
    address, listener = manager
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "7", "HOME": "/"}
    environment |= {ALARM_VARIABLE: "2"}
    process = ServiceManager.from_environment(environment, pid=7)
    assert environment == {"HOME": "/"}
    process.ready(lambda: "v1")
    assert "WATCHDOG=1" in listener.heard()


def test_the_watchdog_of_another_process_is_not_fed(manager):
    address, listener = manager
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "7"}
    ServiceManager.from_environment(environment, pid=8).ready(lambda: "v1")
    assert listener.heard() == ["READY=1", "STATUS=v1"]
    assert environment == {}


def test_a_manager_that_is_gone_stops_no_work(tmp_path):
    process = ServiceManager(str(tmp_path / "nobody"))
    process.ready(lambda: "v1")
    process.stopping("told to stop")


def test_the_alarm_is_set_while_the_process_is_ready():
    alarms: list[float] = []
    process = ServiceManager(alarm_s=60, set_alarm=alarms.append)
    process.starting("loading the model")
    assert alarms == [], "importing and loading may block the loop"
    process.ready(lambda: "v1")
    process.report()
    process.stopping("told to stop")
    assert alarms == [60, 60, 0]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_an_alarm_that_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match=f"{ALARM_VARIABLE} is '{text}': expected a positive number of seconds"):
        ServiceManager.from_environment({ALARM_VARIABLE: text}, pid=1)


def test_a_host_of_an_actor_reports_nothing():
    async def main() -> None:
        here = ServiceManager()
        outside = service_manager()
        report_to(here)
        assert await asyncio.create_task(nested()) is here
        assert outside is not here

    async def nested() -> ServiceManager:
        return service_manager()

    before = service_manager()
    asyncio.run(main())
    assert service_manager() is before


BLOCKED = """
import asyncio, os, subprocess, sys, time
from asyncrl.runtime.process import run_process
from asyncrl.runtime.service_manager import service_manager

async def job(stopping):
    subprocess.run([sys.executable, "-c", "import os; print(*sorted(os.environ))"], check=True)
    service_manager().ready(lambda: "v1")
    print("ready", flush=True)
    {then}

sys.exit(run_process(job, name="rollout-7"))
"""


def start(then: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", BLOCKED.format(then=then)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_reports_from_its_start_to_its_end(tmp_path):
    listener = Listener(str(tmp_path / "notify"))
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000", ALARM_VARIABLE: "60"}
    process = start("await stopping.wait()", **environment)
    assert process.stdout is not None
    children = process.stdout.readline().split()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", ALARM_VARIABLE} & set(children)
    while "READY=1" not in listener.heard():
        pass
    for _ in range(3):
        assert "WATCHDOG=1" in listener.heard()
    process.send_signal(signal.SIGTERM)
    while "STOPPING=1" not in (lines := listener.heard()):
        assert "WATCHDOG=1" in lines
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    listener.socket.close()


@pytest.mark.parametrize("block", ["time.sleep(60)", "sum(iter(int, 1))"], ids=["asleep", "in C, with the interpreter"])
def test_a_process_whose_loop_is_blocked_dies_of_its_alarm_and_shows_its_stacks(block):
    process = start(block, **{ALARM_VARIABLE: "0.2"})
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGALRM
    assert "most recent call first" in errors
    assert "in job" in errors


def test_a_blocked_process_that_the_watchdog_aborts_shows_its_stacks(tmp_path):
    process = start("time.sleep(60)")
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        pass
    process.send_signal(signal.SIGABRT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGABRT
    assert "in job" in errors


def test_only_this_room_knows_the_protocol():
    """A second place that sends READY=1 could report a node that is not ready."""
    sources = (Path(__file__).parents[2] / "asyncrl").rglob("*.py")
    assert [path.name for path in sources if "READY=1" in path.read_text(encoding="utf-8")] == ["service_manager.py"]
