"""A run whose roles are services of several machines outlives their faults, and its account adds up."""

import shutil
from pathlib import Path

import pytest

from tests.cluster.deployment import TASK, Deployment
from tests.cluster.faults import endure, some_faults
from tests.cluster.network import Network
from tests.cluster.placement import CLUSTER
from tests.cluster.task import write_run_file

pytestmark = [
    pytest.mark.long("every fault of every machine, for minutes"),
    pytest.mark.usefixtures("machines_permitted"),
]
SETTINGS = (
    f'reward.function="{TASK}/reward.py:count_of_a"',
    "checkpoint.every_steps=2",
    "evaluation.every_versions=0",
)
STEPS = 250


def test_a_run_has_all_its_steps_whatever_happens_to_its_machines(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("supervisor")
    task = tmp_path / "task"
    shutil.copytree(toy, task)
    write_run_file(task, toy / "toy.toml", (*SETTINGS, f"run.steps={STEPS}", *CLUSTER.settings))
    with Network() as network:
        run = Deployment(network, CLUSTER, task)
        run.start()
        run.until_steps(1)
        for fault in some_faults(CLUSTER):
            endure(run, fault)
        run.until_complete(seconds=600)

        summary = run.summary()
        assert summary is not None
        assert (summary.status, summary.cause, summary.steps) == ("finished", "", STEPS), run.describe()
        assert run.audit()["problems"] == []
