"""Trainer and rollouts take turns at the same devices, in real processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import failpoints
from tests.integration.conftest import TWO_ROLLOUTS, StartRun, ToyRun

pytestmark = pytest.mark.slow("whole runs of real processes")

ROOT = Path(__file__).parents[2]
COLOCATED = ("rollout.colocated=true", TWO_ROLLOUTS)


def turns(run: ToyRun, role: str) -> list[dict[str, object]]:
    return [event for event in run.events if event["event"] == "turn.ended" and event["role"] == role]


@pytest.fixture(scope="module")
def complete(start_shared_run: StartRun) -> ToyRun:
    return start_shared_run(*COLOCATED, "staleness=0", "trainer.ranks=2", steps=6).end()


def test_a_colocated_run_trains_every_step_in_a_turn_of_its_own(complete):
    complete.assert_adds_up()
    assert complete.summary.status == "finished"
    assert len(turns(complete, "trainer")) == 1 + 6, "one to load and one for each step"
    assert len(turns(complete, "rollout")) >= 6


def test_turns_are_measured_and_in_the_report(complete):
    metrics = complete.directory.read_metrics()
    assert [key for key in metrics[-1] if key.startswith("turn_")] == [
        "turn_rollout_s", "turn_wait_s", "turn_s", "turn_moved_s", "turn_bytes",
    ]  # fmt: skip
    assert all(step["turn_s"] > step["turn_moved_s"] > 0 for step in metrics[1:])
    report = complete.directory.report.read_text()
    assert "Seconds of one turn at shared devices" in report
    assert "Bytes moved" in report


@pytest.mark.long("a rollout is killed in its turn below")
@pytest.mark.parametrize("place", ["trainer.woken", "trainer.trained"])
def test_a_trainer_killed_in_its_turn_costs_no_trajectory(start_run, place, tmp_path):
    run = start_run(*COLOCATED, environment={failpoints.VARIABLE: f"{place}:3:{tmp_path}/died"}, steps=6)
    run.end()
    run.assert_adds_up()
    assert [event["cause"] for event in run.happened("node.exited", "trainer-0")] == ["was killed by SIGKILL"]


@pytest.mark.parametrize(
    "place",
    ["rollout.woken", pytest.param("rollout.asleep", marks=pytest.mark.long("another moment of the same turn"))],
)
def test_a_rollout_killed_in_its_turn_or_at_its_end_costs_no_trajectory(start_run, place, tmp_path):
    run = start_run(*COLOCATED, environment={failpoints.VARIABLE: f"{place}:3:{tmp_path}/died"}, steps=6)
    run.end()
    run.assert_adds_up()
    exits = [event for name in ("rollout-0", "rollout-1") for event in run.happened("node.exited", name)]
    assert [event["cause"] for event in exits] == ["was killed by SIGKILL"]


def accuracy(folder: Path, *settings: str) -> float:
    """Held-out accuracy at the end of the quickstart, %."""
    options = [part for setting in (f'run.dir="{folder}"', *settings) for part in ("--set", setting)]
    command = [sys.executable, "-m", "asyncrl", "run", "conf/quickstart.toml", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"held-out accuracy [\d.]+% -> ([\d.]+)%", done.stdout)
    assert found, done.stdout
    return float(found[1])


@pytest.mark.long("trains until it has learned")
def test_the_colocated_quickstart_learns_as_much_as_the_split_one(tmp_path):
    make = [sys.executable, "-m", "asyncrl", "toy", "step-sums", "cache/step-sums"]
    subprocess.run(make, cwd=ROOT, check=True, timeout=900)
    split, colocated = accuracy(tmp_path / "split"), accuracy(tmp_path / "colocated", *COLOCATED)
    assert split > 90
    assert colocated > 90
    assert abs(split - colocated) < 5
