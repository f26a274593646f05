"""Runs whose payloads are stored by spools of their own, which are killed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from asyncrl.broker.ledger.records import Result
from tests.integration.conftest import TWO_ROLLOUTS, StartRun, ToyRun

pytestmark = pytest.mark.slow("whole runs of real processes")

STEPS = 40
"""Enough that a spool is killed long before the end: groups that it stored then hold the run up."""


class Spools:
    """Spool processes beside one run, by name; each keeps its folder."""

    def __init__(self, run: ToyRun, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        folder = str(self._folder / name)
        self.processes[name] = self._run.start_node("spool", name, "--dir", folder)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def stored(self, name: str) -> int:
        """Number of results in this spool."""
        records = [record for record in self._run.records() if isinstance(record, Result)]
        return sum(record.ref.spool.startswith(f"{name}-") for record in records)

    def events(self, kind: str, name: str) -> list[dict[str, object]]:
        return [event for event in self._run.events if event["event"] == kind and event["spool"].startswith(name)]


@pytest.fixture
def with_spools(start_run: StartRun, tmp_path: Path) -> tuple[ToyRun, Spools]:
    """A run whose broker hosts no spool, and two spools that both store results, each of another rollout."""
    run = start_run(TWO_ROLLOUTS, "broker.spool=false", "broker.spool_ttl_s=5", "broker.node_ttl_s=3", steps=STEPS)
    run.until(run.directory.address.exists)
    run.operate("pause")  # Or one rollout and one spool do it all before the others have come.
    spools = Spools(run, tmp_path)
    spools.start("a")
    spools.start("b")
    run.until(lambda: all(run.happened("node.ready", name) for name in ("rollout-0", "rollout-1")))
    run.operate("unpause")
    run.until(lambda: spools.stored("a") > 0 and spools.stored("b") > 0)
    return run, spools


def test_a_spool_that_is_killed_and_comes_back_loses_nothing(with_spools: tuple[ToyRun, Spools]) -> None:
    run, spools = with_spools
    spools.kill("a")
    run.until(lambda: bool(spools.events("spool.away", "a")))
    spools.start("a")
    run.until(lambda: bool(spools.events("spool.back", "a")))
    run.end()

    assert (run.code, run.summary.status, run.summary.steps) == (0, "finished", STEPS), run.errors
    run.assert_adds_up()
    audit = run.audit()
    assert audit.problems == []
    assert "the spool a-" in audit.unchecked["spool"], "an audit says whose files it has not read"
    assert {process.wait(30) for process in spools.processes.values()} == {0}


@pytest.mark.long("one more whole run")
def test_a_run_without_one_of_its_spools_samples_again_and_ends(with_spools: tuple[ToyRun, Spools]) -> None:
    run, spools = with_spools
    spools.kill("a")
    run.end()

    assert (run.code, run.summary.status, run.summary.steps) == (0, "finished", STEPS), run.errors
    (away,), (lost,) = spools.events("spool.away", "a"), spools.events("spool.lost", "a")
    assert away["waits_s"] == 5
    assert lost["groups_restarted"] or lost["groups_taken"]
    assert run.audit().problems == []
