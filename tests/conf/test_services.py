"""Runs whose roles are services go on whatever is killed, and lose nothing when they are restarted on purpose."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl.cli.inspect import read_audit
from asyncrl.config.run_file import load_config, to_toml
from asyncrl.wire.keys.key_folder import KeyFolder
from tests.conf.managed_run import ENVIRONMENT, MANAGERS, ROLES, ManagedRun, UnderSystemd, kill_at_random

pytestmark = pytest.mark.slow("a service manager starts whole runs")

Start = Callable[..., ManagedRun]
LONG = 2000


@pytest.fixture
def start(toy: Path) -> Iterator[Start]:
    """Start a toy run of ``steps`` steps under a service manager; with ``keys``, its broker has an allow-list."""
    started: list[ManagedRun] = []
    folder = Path(tempfile.mkdtemp())  # A short path: supervisord has a socket in the run directory.

    def start(manager: str, steps: int, *overrides: str, keys: bool = False) -> ManagedRun:
        pytest.importorskip("supervisor")
        settings = (f"run.steps={steps}", "checkpoint.every_steps=2", "evaluation.every_versions=0", *overrides)
        (folder / "live.toml").write_text(to_toml(load_config(toy / "toy.toml", settings)))
        options = ("--keys", str(folder / "keys")) if keys else ()
        if keys:
            KeyFolder(folder / "keys").init()
        run = MANAGERS[manager](folder, folder / "live.toml", *options)
        run.start()
        started.append(run)
        return run

    yield start
    for run in started:
        run.end()
    shutil.rmtree(folder, ignore_errors=True)


def asyncrl(*words: str | Path) -> None:
    """Run a command of `asyncrl`."""
    command = [sys.executable, "-m", "asyncrl", *words]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def assert_complete(run: ManagedRun, steps: int) -> None:
    """The one run that there is has all its steps, and its account adds up."""
    run.until_complete()
    summary = run.directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.cause, summary.steps) == ("finished", "", steps), run.describe()
    assert [path.name for path in run.directory.path.parent.iterdir() if (path / "config.toml").exists()] == ["live"]
    assert read_audit(run.directory.path).problems == []


@pytest.mark.long("kills every unit in turn")
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_run_goes_on_whatever_is_killed(start: Start, manager: str):
    run = start(manager, 200)
    run.until_steps(1)
    kills = kill_at_random(run, 8, seed=0, every_s=1.0)
    assert kills.total() >= 8
    assert_complete(run, 200)


@pytest.mark.long("starts every unit four times")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_role_comes_back_whoever_sends_it_a_signal_and_stays_down_only_if_it_was_drained(
    start: Start, manager: str, number: signal.Signals
):
    """Earlyoom, a person or a script sends SIGTERM as the service manager does, which alone means it for good."""
    run = start(manager, LONG)
    run.until_steps(1)
    for role in ROLES:
        before = run.pid(role)
        assert run.kill(role, number)
        run.until(lambda role=role, before=before: run.pid(role) not in (None, before), seconds=60)  # type: ignore[misc]
        run.until_steps(2)
    name = next(e["node"] for e in run.directory.read_events() if e["event"] == "node.joined" and e["role"] == "reward")
    asyncrl("drain", run.directory.path, name)
    run.until(lambda: run.is_down("reward"), seconds=60)
    run.end()
    assert run.directory.read_summary() is None, "the run has not failed"
    audit = read_audit(run.directory.path)
    assert not audit.problems
    if number != signal.SIGKILL:
        assert sum(audit.tokens_thrown_away.values()) == 0


@pytest.mark.long("restarts every unit in turn")
@pytest.mark.parametrize("manager", MANAGERS)
def test_every_role_can_be_restarted_without_losing_a_token(start: Start, manager: str):
    run = start(manager, 60)
    run.until_steps(2)
    for role in ("rollout", "broker", "reward", "trainer"):
        run.restart(role)
        run.until_steps(3)
    assert_complete(run, 60)
    audit = read_audit(run.directory.path)
    assert sum(audit.tokens_thrown_away.values()) == 0
    assert (audit.skipped, audit.double_trained) == (0, 0)


@pytest.mark.long("test_recovery.py resumes runs")
def test_a_broker_that_was_told_to_stop_continues_the_run_later(start: Start):
    run = start("systemd", 30)
    assert isinstance(run, UnderSystemd)
    run.until_steps(2)
    run.target["broker"].stop()
    assert (run.target["broker"].state, run.target["broker"].result) == ("inactive", "success"), run.describe()
    assert run.directory.read_summary() is None, "the run has not failed"
    run.until(lambda: all("waiting for the broker" in run.target[role].status for role in ("trainer", "reward")))
    run.target["broker"].start()
    assert_complete(run, 30)
    assert {role: run.target[role].starts for role in ROLES} == {"broker": 2, "reward": 1, "trainer": 1, "rollout": 1}
    assert sum(read_audit(run.directory.path).tokens_thrown_away.values()) == 0


def test_units_report_their_work_and_all_end_with_the_run(start: Start):
    run = start("systemd", 12)
    assert isinstance(run, UnderSystemd)
    run.target["broker"].until("running")
    for role in ("reward", "trainer", "rollout"):
        run.target[role].until("running", seconds=120)
    assert_complete(run, 12)
    assert run.target.states() == dict.fromkeys(ROLES, "inactive"), run.describe()
    assert [service.starts for service in run.target.services.values()] == [1, 1, 1, 1]
    assert sum(service.foreign_reports for service in run.target.services.values()) == 0


def test_a_run_that_is_stopped_ends_every_service_with_0_and_goes_on_when_they_are_restarted_while_they_end(
    start: Start,
):
    """A mere start passes over a service that has yet to end."""
    run = start("supervisord", LONG)
    run.until_steps(2)
    asyncrl("stop", run.directory.path)
    run.restart("all")
    run.until_steps(2)
    log = run.folder / "files" / "supervisord" / "supervisord.log"
    before = len(log.read_text())
    asyncrl("stop", run.directory.path)
    run.until(run.is_at_rest, seconds=60)
    ended = re.findall(r"exited: (.*)", log.read_text()[before:])
    assert sorted(ended) == sorted(f"{role} (exit status 0; expected)" for role in ROLES)
    assert run.directory.report.is_file()
    assert read_audit(run.directory.path).problems == []


@pytest.mark.long("waits for the watchdog")
def test_a_frozen_node_is_killed_by_the_watchdog_and_the_run_goes_on(start: Start):
    run = start("systemd", 24)
    assert isinstance(run, UnderSystemd)
    run.until_steps(1)
    victim = run.target["trainer"]
    victim.unit.set("WatchdogSec", "3")  # of the next start on
    victim.unit.set("TimeoutStopSec", "2")  # a stopped process does not hear SIGABRT
    victim.restart()
    victim.until("running", seconds=120)
    victim.kill(signal.SIGSTOP)
    run.until(lambda: "watchdog" in victim.results)
    assert_complete(run, 24)


@pytest.mark.parametrize(
    "manager", ["systemd", pytest.param("supervisord", marks=pytest.mark.long("the other service manager"))]
)
def test_nodes_of_a_broker_with_keys_find_the_key_of_their_machine(start: Start, manager: str):
    run = start(manager, 4, keys=True)
    assert_complete(run, 4)
    assert (run.directory.path / "key").exists()


@pytest.mark.long("one more whole run")
@pytest.mark.parametrize("manager", MANAGERS)
def test_starting_the_services_of_a_complete_run_changes_nothing(start: Start, manager: str):
    run = start(manager, 4)
    assert_complete(run, 4)
    before = run.directory.ledger.read_bytes()
    run.end()
    run.start()
    run.until(run.is_at_rest)
    assert run.directory.ledger.read_bytes() == before
    assert run.directory.read_summary() is not None
