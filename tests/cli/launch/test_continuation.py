"""A resumed run tells from which step it goes on, and with which settings."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.cli.launch.continuation import continuation_lines
from asyncrl.node.broker.origin import settle
from asyncrl.observe.run_directory import RunDirectory
from tests.cli.launch.test_run import METRICS
from tests.files.test_checkpoints import write_checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def lines(directory: RunDirectory) -> list[str]:
    return list(continuation_lines(directory))


def test_a_new_run_is_not_resumed(directory: RunDirectory) -> None:
    assert lines(directory) == []


def test_steps_after_the_checkpoint_are_computed_again(directory: RunDirectory) -> None:
    for step in range(7):
        directory.append_metrics(METRICS | {"step": step})
    assert lines(directory) == [
        "resuming from the beginning, without a checkpoint; steps 1 to 7 are computed again, with the same batches"
    ]
    folder = write_checkpoint(directory.checkpoints, 5)
    assert lines(directory) == [
        f"resuming from checkpoint {folder}, if it is intact; steps 6 to 7 are computed again, with the same batches"
    ]
    write_checkpoint(directory.checkpoints, 6)
    assert lines(directory)[0].endswith("; step 7 is computed again, with the same batches")
    folder = write_checkpoint(directory.checkpoints, 7)
    assert lines(directory) == [f"resuming from checkpoint {folder}, if it is intact"]


def test_settings_that_were_changed_meanwhile_are_named(directory: RunDirectory) -> None:
    for value in (3, 2):
        directory.append_event("setting.changed", key="schedule.staleness", value=value, before=1, by="operator")
    assert lines(directory) == ["changed by `asyncrl set`: schedule.staleness = 2"]


def test_records_that_are_damaged_are_left_to_the_broker(directory: RunDirectory) -> None:
    directory.metrics.write_text("?\n")
    assert lines(directory) == []


def test_a_copy_says_that_it_is_one(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "a")
    with closing(Ledger(directory.ledger)) as ledger:
        settle(directory, ledger)
    shutil.copytree(directory.path, tmp_path / "b")
    assert lines(RunDirectory(tmp_path / "b")) == [
        f"{tmp_path}/b is a copy of the run in {tmp_path}/a: it goes on as a run of its own, with another identity and "
        f"secret; nodes and spools of the original are not taken"
    ]
