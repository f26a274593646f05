"""A node with a bug: nothing damaged is trained on, each damaged trajectory is counted, and the run ends as planned."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.broker.ledger.records import AnyRecord, FailedAttempt, Result, Rewarded, Untrained
from asyncrl.messages.trajectory import Unit
from tests.integration.conftest import ToyRun

ROOT = Path(__file__).parents[2]
STEPS = 32


def noted(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]
    return [msgspec.json.decode(line) for line in lines]


def last_results(records: list[AnyRecord]) -> dict[Unit, Result]:
    return {record.unit: record for record in records if isinstance(record, Result)}


@pytest.mark.long("half a minute; spool and reward refuse damage in tests of their own")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_node_that_damages_a_third_of_its_trajectories_costs_neither_the_run_nor_the_model(
    start_run, tmp_path: Path, ranks: int
) -> None:
    hooks, log = tmp_path / "hooks", tmp_path / "log"
    hooks.mkdir()
    log.mkdir()
    (hooks / "sitecustomize.py").write_text("import tests.integration.damaging_nodes\n")
    environment = {"PYTHONPATH": f"{hooks}:{ROOT}", "ASYNCRL_TEST_LOG": str(log)}
    settings = ["schedule.max_attempts=6", f"trainer.ranks={ranks}"]
    run: ToyRun = start_run(*settings, steps=STEPS, environment=environment)
    run.patience_s = 600.0
    run.until(lambda: run.steps_done() >= STEPS)
    run.end()
    records, notes = run.records(), noted(log)
    damaged = {note["crc32"] for note in notes if note["event"] == "damaged"}
    failures = [record for record in records if isinstance(record, FailedAttempt)]
    results, audit = [record for record in records if isinstance(record, Result)], run.audit()

    # The run went on to its end, and adds up.
    assert (run.code, run.summary.status, run.summary.steps) == (0, "finished", STEPS), run.log_tails()
    assert audit.steps == STEPS
    assert not [event for event in run.events if event["event"] in ("node.lost", "node.exited")]

    # The witness: what was trained on is sound, and is the undamaged result of its unit.
    trained = [note for note in notes if note["event"] == "trained"]
    final = last_results(records)
    assert len(trained) > STEPS
    assert all(note["is_sound"] for note in trained)
    units = [Unit(note["group_id"], note["index"]) for note in trained]
    assert not {unit for unit in units if final[unit].ref.crc32 in damaged}
    left_out = {record.group_id for record in records if isinstance(record, Untrained)}
    assert left_out, "reward nodes overlook some"
    assert not left_out & {unit.group_id for unit in units}

    # Every damaged trajectory that got into the ledger failed, with the cause of its damage.
    stages = Counter(failure.stage for failure in failures)
    told = Counter(failure.unit for failure in failures)
    overlooked = Counter(Unit(*note["unit"]) for note in notes if note["event"] == "overlooked")
    # Nothing is computed from a group whose advantages are zero, so the trainer does not see it; the audit does.
    assert all(problem.startswith(("samples/", "spool/")) for problem in audit.problems), audit.problems
    assert overlooked or not audit.problems
    graded = {record.unit for record in records if isinstance(record, Rewarded)} | told.keys()
    in_ledger = Counter(result.unit for result in results if result.ref.crc32 in damaged)
    uncounted = {unit for unit, number in in_ledger.items() if number > told[unit] and unit in graded}
    assert uncounted <= overlooked.keys(), "only what a reward node has overlooked, and no step needed"
    assert stages["rollout"] >= sum(note["event"] == "damaged in the engine" for note in notes)
    assert stages["trainer"] >= len(left_out)
    assert len(damaged) > 150
    assert min(stages[stage] for stage in ("rollout", "payload", "trainer")) > 0
    assert audit.failed_attempts == stages
    assert sum(audit.untrained.values()) == len(left_out)
    assert sum(run.summary.failed.values()) >= len(failures), "each is counted by its cause"
