"""The stand-in for systemd is as strict as systemd."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conf.unit_manager import Service, Unit

SCRIPT = """
import os, socket, subprocess, sys, time
def say(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
"""


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Service]]:
    """Start a service whose main process runs the given Python statements."""
    started: list[Service] = []

    def serve(statements: str, *settings: str) -> Service:
        lines = ["[Service]", "Type=notify", *settings]
        program = tmp_path / f"program-{len(started)}.py"
        program.write_text(SCRIPT + statements)
        lines.append(f"ExecStart={sys.executable} -S {program}")
        (tmp_path / "x.service").write_text("\n".join(lines))
        started.append(Service(Unit(tmp_path, "x.service"), tmp_path / "log", restart_s=0.01))
        started[-1].start()
        return started[-1]

    yield serve
    for service in started:
        service.stop()
        service.forget()


def test_a_service_runs_once_it_says_so_and_ends_with_0(serve):
    service = serve('say("READY=1\\nSTATUS=all is well"); time.sleep(0.2)')
    service.until("running")
    service.until("inactive")
    assert (service.result, service.status, service.starts) == ("success", "all is well", 1)


def test_an_end_before_ready_is_a_failure_even_with_0(serve):
    service = serve("pass", "Restart=on-failure", "StartLimitBurst=3")
    service.until("failed")
    assert service.results == ["protocol"] * 3
    assert service.result == "start-limit-hit"


def test_a_service_that_never_says_that_it_is_ready_fails(serve):
    service = serve("time.sleep(60)", "TimeoutStartSec=0.2")
    service.until("failed")
    assert service.result == "timeout"


def test_more_time_can_be_asked_for(serve):
    asks = 'for _ in range(6):\n    say("EXTEND_TIMEOUT_USEC=600000")\n    time.sleep(0.2)\n'
    service = serve(f'{asks}say("READY=1"); time.sleep(60)', "TimeoutStartSec=0.3")
    service.until("running")


def test_a_silent_service_is_killed_by_its_watchdog(serve):
    service = serve('say("READY=1\\nWATCHDOG=1"); time.sleep(60)', "WatchdogSec=0.3")
    service.until("failed")
    assert service.result == "watchdog"


def test_a_report_of_a_child_does_not_count(serve):
    child = 'if os.fork() == 0:\n    say("READY=1")\n    os._exit(0)\n'
    service = serve(f"{child}time.sleep(60)", "TimeoutStartSec=1")
    service.until("failed")
    assert (service.result, service.foreign_reports) == ("timeout", 1)


def test_a_killed_service_is_started_again_and_one_with_a_listed_code_is_not(serve):
    settings = ("Restart=on-failure", "RestartPreventExitStatus=74 78")
    service = serve('say("READY=1"); time.sleep(60)', *settings)
    service.until("running")
    service.kill()
    while service.starts < 2:
        service.until("starting", "restarting", "running")
    service.until("running")
    assert service.results == [f"signal {signal.SIGKILL.value}"]
    listed = serve('say("READY=1"); sys.exit(78)', *settings)
    listed.until("failed")
    assert (listed.result, listed.starts) == ("exit-code 78", 1)


@pytest.mark.parametrize("end", ["sys.exit(143)", "os.kill(os.getpid(), 15)"])
def test_an_end_that_counts_as_success_can_force_a_restart_but_not_after_a_stop(serve, end):
    settings = ("Restart=on-failure", "SuccessExitStatus=143", "RestartForceExitStatus=143 SIGTERM")
    service = serve(f'say("READY=1"); {end}', *settings, "StartLimitBurst=2")
    service.until("failed")
    assert (service.starts, service.result) == (2, "start-limit-hit"), "restarted, until the limit"
    assert service.results == ["success"] * 2
    leaves = 'import signal; signal.signal(15, lambda *_: sys.exit(143)); say("READY=1"); time.sleep(60)'
    stopped = serve(leaves, *settings)
    stopped.until("running")
    stopped.stop()
    assert (stopped.state, stopped.result, stopped.starts) == ("inactive", "success", 1)


def has_processes(service: Service, count: int) -> bool:
    """True once a service has so many processes, within 30 s."""
    deadline_s = time.monotonic() + 30.0
    while not (is_so := len(service.processes()) == count) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return is_so


def test_children_die_with_their_main_process_even_in_other_sessions(serve):
    service = serve(
        'subprocess.Popen(["sleep", "61"], start_new_session=True); say("READY=1"); time.sleep(60)', "Restart=no"
    )
    service.until("running")
    assert has_processes(service, 2), "the kernel shows the environment of a process a moment after it runs"
    service.kill()
    service.until("failed")
    assert has_processes(service, 0), "it reaps what was killed"


def test_a_stop_waits_for_the_end_and_kills_after_its_time(serve):
    stubborn = 'import signal; signal.signal(15, signal.SIG_IGN); say("READY=1"); time.sleep(60)'
    service = serve(stubborn, "TimeoutStopSec=0.2", "Restart=on-failure")
    service.until("running")
    service.stop()
    assert (service.state, service.result) == ("inactive", "timeout")


def test_settings_are_read_with_drop_ins_specifiers_and_variables(tmp_path: Path):
    (tmp_path / "a@.service").write_text('[Service]\nEnvironment=X= Y="two words"\nExecStart=/bin/echo %i $X ${Y}\n')
    (tmp_path / "a@b.service.d").mkdir()
    (tmp_path / "a@b.service.d" / "10.conf").write_text('[Service]\nEnvironment="X=--a 1"\nWatchdogSec=2min\n')
    unit = Unit(tmp_path, "a@b.service")
    assert unit.command(unit.environment()) == ["/bin/echo", "b", "--a", "1", "two words"]
    assert unit.seconds("WatchdogSec", 0) == 120
