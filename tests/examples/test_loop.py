"""examples/loop.py: the whole loop in one process."""

import asyncio
from pathlib import Path

from asyncrl import load_config
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.reader import read_records
from asyncrl.records.run_directory import RunDirectory
from tests.examples.conftest import load_example


def test_every_step_is_trained_and_every_trajectory_accounted_for(toy: Path, tmp_path: Path) -> None:
    overrides = ["run.steps=3", f"run.dir={tmp_path}", "trainer.warmup_steps=0", "evaluation.every_versions=0"]
    finished = asyncio.run(load_example("loop").main(toy / "toy.toml", *overrides))

    directory = RunDirectory(finished)
    summary = directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.steps, summary.versions) == ("finished", 3, 3)
    assert audit(read_records(directory.ledger), load_config(toy / "toy.toml").schedule).problems == []
