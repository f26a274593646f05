"""Schedules violate no invariant, a seed is replayed exactly, and planted bugs are caught."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.wire.session import Limits
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.simulation.__main__ import report
from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.schedule import Outcome, search

ROOT = Path(__file__).parents[2]
NUM_FAST, NUM_SLOW = 60, 2000
RAREST = "resumed_after_loss"
"""The planted bug that the fewest schedules meet."""


def require_no_violation(outcome: Outcome) -> None:
    replay = f"python -m tests.simulation --seed {outcome.failed_seed}"
    assert outcome.failed_seed is None, f"{outcome.violation}; replay it with: {replay}"


def test_no_schedule_violates_an_invariant() -> None:
    outcome = search(range(NUM_FAST))

    require_no_violation(outcome)
    assert outcome.resumed > 0  # Otherwise the rule of resumption was not checked.
    assert outcome.started_over > 0
    assert outcome.judged_whole > 0


@pytest.mark.slow("runs in virtual time")
def test_no_schedule_violates_an_invariant_where_messages_travel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (ZmqHub, ZmqLink):
        defaults: Any = end.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "limits", Limits(frame=300))
    require_no_violation(search(range(10)))


@pytest.mark.slow("runs in virtual time")
def test_a_seed_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    search([3], is_traced=True)
    first = capsys.readouterr().out
    search([4])
    search([3], is_traced=True)

    assert first == capsys.readouterr().out
    assert "rollout-0" in first


@pytest.mark.slow("runs in virtual time")
def test_a_failing_seed_is_reported_with_the_command_that_replays_it() -> None:
    with planted("cursor_ahead"):
        outcome = search(range(100))
    line = report(outcome, range(100), "cursor_ahead")

    assert line["violations"] == 1
    assert line["replay"] == f"python -m tests.simulation --seed {outcome.failed_seed} --mutant cursor_ahead"
    assert search([outcome.failed_seed or 0]).failed_seed is None  # The seed passes without the bug.


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(200, marks=pytest.mark.slow("hundreds of runs in virtual time")),
        pytest.param(NUM_SLOW, marks=pytest.mark.long("thousands of seeds more")),
    ],
)
def test_many_schedules_violate_no_invariant(count: int) -> None:
    require_no_violation(search(range(count)))


@pytest.mark.slow("hundreds of runs in virtual time")
@pytest.mark.parametrize(
    "mutant", [pytest.param(m, marks=pytest.mark.long("a minute")) if m == RAREST else m for m in MUTANTS]
)
def test_a_planted_bug_is_caught(mutant: str, record_property: Callable[[str, object], None]) -> None:
    with planted(mutant):
        outcome = search(range(NUM_SLOW))

    assert outcome.failed_seed is not None, f"{NUM_SLOW} schedules did not notice {mutant}"
    record_property("seed", outcome.failed_seed)
    record_property("violation", outcome.violation)


@pytest.mark.long("the fast suite has a seed in one interpreter")
def test_a_seed_is_deterministic_across_interpreters() -> None:
    """String hashes and memory addresses affect no decision."""
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "5"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[:-1]  # The last line has timings.
        for number in ("1", "2")
    ]

    assert outputs[0] == outputs[1]
