"""What computes for longer than every limit is neither quiet nor lost; a run goes on without what hangs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import ToyRun

FAULTY_ROLLOUT = Path(__file__).with_name("faulty_rollout.py")
SLOW_LOSS = Path(__file__).with_name("slow_loss.py")
NOTICE_S, TTL_S = 4.0, 6.0
COMPUTES_S = 8.0
"""Longer than any limit on silence."""
SETTINGS = (
    *(f"broker.notice_s={NOTICE_S}", f"broker.node_ttl_s={TTL_S}", "broker.stall_s=3", "rollout.replicas=1"),
    *("evaluation.every_versions=0", "evaluation.at_start=false", "evaluation.at_end=false"),
)
FAULTY = "rollout-1"

pytestmark = pytest.mark.slow("whole runs of real processes")


def start_beside(run: ToyRun, fault: str) -> None:
    """Start a rollout with a fault, and wait until it has the weights."""
    address = run.directory.address
    run.until(lambda: address.exists() and run.steps_done() > 0)
    run.beside(
        str(FAULTY_ROLLOUT), fault, "--role", "rollout", "--name", FAULTY, "--broker", address.read_text().strip()
    )
    run.until(lambda: bool(run.happened("node.ready", FAULTY)))


def test_a_rollout_and_a_trainer_that_compute_for_longer_than_any_limit_stay(start_run: Callable[..., ToyRun]) -> None:
    settings = {"COMPUTES_S": str(COMPUTES_S)}
    run = start_run(*SETTINGS, f"algorithm.loss={SLOW_LOSS}:loss", steps=400, environment=settings)
    start_beside(run, "computes")
    computed_s = run.happened("node.ready", FAULTY)[0]["time_s"] + COMPUTES_S + NOTICE_S
    run.until(lambda: run.directory.read_metrics()[-1]["time_s"] > computed_s)
    run.interrupt()
    run.end()

    assert FAULTY in {row["node"] for row in run.samples()}
    away = [event for event in run.events if event["event"] in ("node.quiet", "node.lost", "node.stalled")]
    assert away == []
    audit = run.audit()
    assert (audit.skipped, audit.double_trained) == (0, 0)


def test_a_run_goes_on_without_a_rollout_that_beats_and_makes_no_progress(
    start_run: Callable[..., ToyRun],
) -> None:
    run = start_run(*SETTINGS, steps=400)
    start_beside(run, "hangs")
    run.until(lambda: bool(run.happened("node.stalled", FAULTY)))
    done = run.steps_done()
    run.until(lambda: run.steps_done() >= done + 20)
    run.interrupt()
    run.end()

    stalled = run.happened("node.stalled", FAULTY)[0]
    assert "and it has computed nothing for 3 s" in stalled["cause"]
    assert run.happened("node.quiet", FAULTY) == []
    assert f"{FAULTY} makes no progress" in run.output
    audit = run.audit()
    assert (audit.skipped, audit.double_trained) == (0, 0)
