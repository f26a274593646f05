"""SIGTERM, SIGSTOP and Ctrl-C on real processes."""

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.conftest import TWO_ROLLOUTS

pytestmark = pytest.mark.slow("whole runs of real processes")

LONG = 400
"""Number of steps; more than are done before the signal."""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "too late"
        time.sleep(0.05)


def test_ctrl_c_ends_every_process_and_reports_an_interruption(start_run):
    run = start_run(steps=LONG)
    run.until(lambda: run.steps_done() >= 2)
    pids = run.processes()
    run.interrupt()
    run.end()
    assert run.code == 130
    assert run.errors.splitlines() == ["asyncrl: the run was interrupted"]
    assert (run.summary.status, run.summary.cause) == ("interrupted", "the run was interrupted")
    assert run.summary.steps >= 2
    assert [path.name for path in run.directory.checkpoints.glob("step_*")] == [f"step_{run.summary.steps:06d}"]
    assert sum(run.audit().tokens_thrown_away.values()) == 0
    assert run.directory.report.exists()
    assert run.output.splitlines()[-1] == "resume      asyncrl resume runs/toy"
    assert not [pid for pid in pids if is_alive(pid)]


def test_ctrl_c_ends_a_run_that_is_still_loading(start_run):
    run = start_run(steps=LONG)
    run.until(run.directory.address.exists)
    pids = run.processes()
    run.interrupt()
    run.end()
    assert run.code == 130
    assert run.summary.status == "interrupted"
    assert "interrupted" in run.summary.cause
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_rollout_that_gets_sigterm_drains_and_comes_back(start_run):
    """It returns its work, which the other one continues; nobody has drained it for good."""
    run = start_run(TWO_ROLLOUTS, steps=LONG)
    run.until(lambda: run.steps_done() >= 2)
    os.kill(run.pid_of("rollout-0"), signal.SIGTERM)
    run.until(lambda: len(run.happened("node.joined", "rollout-0")) == 2)
    run.interrupt()
    assert run.end().code == 130, run.errors
    left, back = run.happened("node.left", "rollout-0")[0], run.happened("node.joined", "rollout-0")[1]
    assert left["cause"] == "told to stop"
    assert run.events.index(left) < run.events.index(back)
    assert "rollout-0 left because of a signal" in run.output
    assert sum(run.audit().tokens_thrown_away.values()) == 0


@pytest.mark.long("waits for real seconds")
def test_a_paused_rollout_is_noticed_within_three_seconds(start_run):
    run = start_run(TWO_ROLLOUTS, steps=LONG)
    run.until(lambda: run.steps_done() >= 2)
    victim = run.pid_of("rollout-1")
    os.kill(victim, signal.SIGSTOP)
    stopped_s = time.time()
    run.until(lambda: run.happened("node.quiet", "rollout-1"))
    quiet = run.happened("node.quiet", "rollout-1")[0]
    assert datetime.fromisoformat(quiet["at"]).timestamp() - stopped_s < 3.0
    os.kill(victim, signal.SIGCONT)
    run.until(lambda: run.happened("node.heard", "rollout-1"))
    assert not run.happened("node.lost", "rollout-1")
    run.kill()


WEDGED = """
import asyncio, sys, time
from asyncrl.wire.handshake import send_beats, identity, join
from asyncrl.wire.run_address import locate
from asyncrl.messages.session import Beat

async def main():
    link, welcome = await join(locate(sys.argv[1]), identity("reward", "wedged"), 10.0)
    beats = asyncio.create_task(send_beats(link, welcome.beat_s, Beat))
    await asyncio.sleep(2 * welcome.beat_s)
    print(time.time(), flush=True)
    time.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.long("waits for real seconds")
def test_a_node_with_a_blocked_event_loop_is_noticed_within_three_seconds(start_run):
    """The process and its socket threads still run, but its event loop sends no heartbeat."""
    run = start_run(steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    node = run.beside("-c", WEDGED, run.directory.address.read_text().strip())
    assert node.stdout is not None
    wedged_s = float(node.stdout.readline())
    run.until(lambda: run.happened("node.quiet", "wedged"))
    quiet = run.happened("node.quiet", "wedged")[0]
    assert datetime.fromisoformat(quiet["at"]).timestamp() - wedged_s < 3.0
    run.until(lambda: run.happened("node.lost", "wedged"))
    run.kill()


def test_every_process_ends_when_the_supervisor_is_killed(start_run):
    run = start_run(steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    supervisor, *others = run.processes()
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not [pid for pid in others if is_alive(pid)], seconds=60)
