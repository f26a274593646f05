"""A process with an armed failpoint dies there once, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import failpoints
from asyncrl.errors import ConfigError
from asyncrl.failpoints import arm

PROGRAM = """
import sys
from asyncrl.failpoints import arm, failpoint
if sys.argv[1:]:
    arm(sys.argv[1], ["spool.synced", "spool.appended"])
for _ in range(3):
    print("past", flush=True)
    failpoint("spool.synced")
    failpoint("spool.appended")
"""


def run_program(*plan: str) -> tuple[int, int]:
    """Exit code and number of passes."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *plan], check=False, capture_output=True, text=True)
    return done.returncode, done.stdout.count("past")


def test_a_process_dies_at_the_nth_pass_and_its_restart_completes(tmp_path: Path) -> None:
    plan = f"spool.synced:2:{tmp_path / 'died'}"
    assert run_program(plan) == (-9, 2)
    assert run_program(plan) == (0, 3)


def test_one_more_process_dies_at_each_place_whose_marker_is_removed(tmp_path: Path) -> None:
    markers = [tmp_path / "synced", tmp_path / "appended"]
    plan = f"spool.synced:1:{markers[0]};spool.appended:2:{markers[1]}"
    for marker in markers:
        marker.touch()
    assert run_program(plan) == (0, 3)
    markers[1].unlink()
    assert run_program(plan) == (-9, 2)
    markers[0].unlink()
    assert run_program(plan) == (-9, 1)
    assert run_program(plan) == (0, 3)


def test_a_process_without_a_failpoint_completes() -> None:
    assert run_program() == (0, 3)


@pytest.mark.parametrize(
    "plan", ["nowhere:1:m", "spool.synced", "spool.synced:x:m", "spool.synced:1:", "spool.synced:1:m;"]
)
def test_a_malformed_failpoint_is_refused_and_arms_none_of_its_plan(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", {})
    with pytest.raises(ConfigError, match="expected PLACE:N:MARKER with one of spool"):
        arm(plan, ["spool.synced"])
    assert failpoints._armed == {}
