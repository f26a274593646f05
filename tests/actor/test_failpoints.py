"""A process dies where it was told to, once, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.actor.failpoints import arm
from asyncrl.errors import ConfigError

LIFE = """
import sys
from asyncrl.actor.failpoints import arm, reach
if sys.argv[1:]:
    arm(sys.argv[1], ["spool.synced", "spool.appended"])
for _ in range(3):
    print("past", flush=True)
    reach("spool.synced")
    reach("spool.appended")
"""


def life(*plan: str) -> tuple[int, int]:
    """Exit code, and how often it came pass."""
    done = subprocess.run([sys.executable, "-c", LIFE, *plan], check=False, capture_output=True, text=True)
    return done.returncode, done.stdout.count("past")


def test_it_dies_at_the_nth_pass_and_its_next_life_goes_on(tmp_path: Path) -> None:
    plan = f"spool.synced:2:{tmp_path / 'died'}"
    assert life(plan) == (-9, 2)
    assert life(plan) == (0, 3)


def test_a_process_that_is_not_armed_passes() -> None:
    assert life() == (0, 3)


@pytest.mark.parametrize("plan", ["nowhere:1:m", "spool.synced", "spool.synced:x:m", "spool.synced:1:"])
def test_a_plan_that_is_none_is_refused(plan: str) -> None:
    with pytest.raises(ConfigError, match="expected PLACE:N:MARKER with one of spool"):
        arm(plan, ["spool.synced"])
