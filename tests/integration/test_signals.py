"""What SIGTERM and Ctrl-C do to real processes."""

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG = 400
"""Steps: more than are done before the signal comes."""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "too late"
        time.sleep(0.05)


def test_ctrl_c_ends_every_process_and_says_interrupted(start_run):
    run = start_run(steps=LONG)
    run.until(lambda: run.steps_done() >= 2)
    pids = run.processes()
    run.interrupt()
    run.end()
    assert run.code == 1
    assert run.errors.splitlines() == ["asyncrl: the run was interrupted"]
    assert (run.summary.status, run.summary.cause) == ("failed", "the run was interrupted")
    assert run.summary.steps >= 2
    assert run.directory.report.exists()
    assert not [pid for pid in pids if is_alive(pid)]


def test_ctrl_c_while_everything_still_loads_ends_it_too(start_run):
    run = start_run(steps=LONG)
    run.until(lambda: len(run.processes()) >= 2)
    pids = run.processes()
    run.interrupt()
    run.end()
    assert run.code == 1
    assert run.summary.status == "failed"
    assert "interrupted" in run.summary.cause
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_rollout_told_to_stop_drains_and_exits_with_0(start_run):
    """Nothing it had in hand is lost: no lease is re-issued."""
    run = start_run("rollout.replicas=2", steps=24)
    run.until(lambda: run.steps_done() >= 2)
    os.kill(run.pid_of("rollout-0"), signal.SIGTERM)
    assert run.end().code == 0, run.errors
    left = next(event for event in run.events if event["event"] == "node.left" and event["node"] == "rollout-0")
    assert (left["cause"], left["leases_reissued"]) == ("told to stop", 0)


def test_when_the_supervisor_is_killed_nobody_is_left_behind(start_run):
    run = start_run(steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    supervisor, *others = run.processes()
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not [pid for pid in others if is_alive(pid)], seconds=60)
