"""examples/own_training_loop.py: a training loop that is not asyncrl's, against real nodes."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.records.run_directory import RunDirectory
from tests.examples.conftest import StartNodes, load_example


@pytest.mark.slow("whole runs of real processes")
def test_its_steps_are_the_steps_of_the_run(toy: Path, tmp_path: Path, start_nodes: StartNodes) -> None:
    address = start_nodes("rollout", "reward", steps=4)
    asyncio.run(load_example("own_training_loop").main(address, str(toy / "model")))

    directory = RunDirectory(tmp_path / "run")
    lines = directory.read_metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(line["grad_norm"] > 0 for line in lines)
    assert len(list(directory.checkpoints.glob("step_*"))) == 1
