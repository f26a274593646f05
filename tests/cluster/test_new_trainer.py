"""A trainer's machine that is replaced by an empty one goes on from the checkpoints on the broker's machine."""

import shutil
from pathlib import Path

import pytest

from tests.cluster.deployment import RUN, TASK, Deployment
from tests.cluster.network import Network
from tests.cluster.placement import Layout, Placement
from tests.cluster.task import write_run_file

pytestmark = [
    pytest.mark.slow("whole runs of real processes on several machines"),
    pytest.mark.usefixtures("machines_permitted"),
]
LAYOUT = Layout(
    placements=(
        Placement(machine="broker", roles=("broker", "reward", "rollout")),
        Placement(machine="trainer", roles=("trainer",)),
    )
)
STEPS = 60
SETTINGS = (
    f'reward.function="{TASK}/reward.py:count_of_a"',
    "checkpoint.every_steps=2",
    "evaluation.every_versions=0",
    f"run.steps={STEPS}",
)


@pytest.mark.long("two whole runs on machines of their own")
def test_an_empty_machine_resumes_from_the_copy_of_the_newest_checkpoint(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("supervisor")
    task = tmp_path / "task"
    shutil.copytree(toy, task)
    write_run_file(task, toy / "toy.toml", SETTINGS)
    with Network() as network:
        run = Deployment(network, LAYOUT, task)
        run.start()
        run.until(lambda: len(saved(run)) >= 3, "three checkpoints", seconds=300)
        copied = steps_of(run.directory.checkpoints)
        run.power_off("trainer")
        disk = run.machine("trainer").path("/root")
        assert steps_of(state(run)) >= copied, "no copy is newer than what was copied"
        shutil.rmtree(disk / ".local")
        newest = steps_of(run.directory.checkpoints)[-1]
        run.power_on("trainer")
        run.until_complete(seconds=150)

        (log,) = run.machine("trainer").path(str(RUN / "logs")).glob("trainer*.log")
        (resumed,) = (line for line in log.read_text().splitlines() if '"trainer.resumed"' in line)
        assert f'"step": {newest}' in resumed
        assert steps_of(run.directory.checkpoints)[-1] == STEPS
        summary = run.summary()
        assert summary is not None
        assert (summary.status, summary.steps) == ("finished", STEPS), run.describe()
        audit = run.audit()
        assert audit["problems"] == []
        assert "manifests" in audit["checked"]["checkpoints"]


def saved(run: Deployment) -> list[object]:
    return [event for event in run.events() if event["event"] == "checkpoint.written"]


def state(run: Deployment) -> Path:
    """The trainer's own folder of checkpoints."""
    (folder,) = run.machine("trainer").path("/root/.local/state/asyncrl/runs").glob("*/checkpoints")
    return folder


def steps_of(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in directory.glob("step_*"))
