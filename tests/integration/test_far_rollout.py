"""A rollout behind a line of 50 Mbit/s samples with exactly the trainer's weights, after it was killed too."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.integration.conftest import StartRun, ToyRun
from tests.integration.forwarder import Line, slow_line
from tests.integration.weights_digest import weights_digest

pytestmark = pytest.mark.slow("whole runs of real processes")

ROOT = Path(__file__).parents[2]
NODE = Path(__file__).with_name("far_node.py")
BITS_PER_S = 50e6
EVERY = 5
"""Steps between two checkpoints, whose weights are compared."""
NUM_DELTAS = 20


@pytest.fixture
def line() -> Iterator[Line]:
    with slow_line(BITS_PER_S) as line:
        yield line


@pytest.fixture
def model(toy: Path, tmp_path: Path) -> Path:
    """A model of 4 million parameters: 8 MB, more than a second on the line."""
    path = tmp_path / "model"
    shutil.copytree(toy / "model", path)
    config = Qwen3Config.from_pretrained(path, hidden_size=384, intermediate_size=1536, head_dim=32)
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(path)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.long("a slow line")
def test_weights_behind_a_slow_line_are_those_of_the_trainer_bit_for_bit_after_a_kill_too(
    start_run: StartRun, line: Line, model: Path, tmp_path: Path
) -> None:
    spool_port = free_port()
    run = start_run(
        f'model.path="{model}"',
        'model.dtype="bfloat16"',
        f'broker.spool_bind="tcp://127.0.0.1:{spool_port}"',
        *("rollout.replicas=1", "trainer.lr=1e-5", "weights.anchor_every=16", "sampling.max_tokens=16"),
        *(f"checkpoint.every_steps={EVERY}", "checkpoint.keep=1000"),
        *("evaluation.every_versions=0", "evaluation.at_start=false", "evaluation.at_end=false"),
        steps=2000,
    )
    run.patience_s = 250.0
    run.until(run.directory.address.exists)
    host, _, broker_port = run.directory.address.read_text().strip().rpartition(":")
    ports = (str(spool_port), str(line.forward(spool_port)))
    address = f"{host}:{line.forward(int(broker_port))}"
    secret = str(run.directory.path / "secret")

    def start(swaps: Path) -> None:
        options = ("--role", "rollout", "--name", "far", "--broker", address, "--secret", secret, "--weights", "spool")
        run.beside(str(NODE), *ports, str(swaps), *options, environment={"PYTHONPATH": str(ROOT)})

    first, second = tmp_path / "first", tmp_path / "second"
    start(first)
    run.until(lambda: len(swapped(first)) > 3)
    line.cut()
    seen = len(swapped(first))
    run.until(lambda: len(swapped(first)) > seen + 3)
    far = run._others[-1]
    far.kill()
    start(second)
    run.until(lambda: len(swapped(second)) > NUM_DELTAS and len(compared(run, swapped(second))) > 1)
    run.drain("rollout-0")  # Which has each new version sooner, and takes all groups that wait for one.
    run.until(lambda: "far" in {row["node"] for row in run.samples()})

    for swaps in (swapped(first), swapped(second)):
        for version, (far_digest, trainer_digest) in compared(run, swaps).items():
            assert far_digest == trainer_digest, f"version {version}"
    versions = list(swapped(second))
    assert versions == sorted(versions), "each version once, in order"
    assert not [event for event in run.events if event["event"] == "upload.failed"]
    assert run.happened("transfer.failed", "far") == []
    uploads = {
        event["policy_version"]: event["num_bytes"] for event in run.events if event["event"] == "version.uploaded"
    }
    assert uploads[versions[-1]] < 0.2 * max(uploads.values()), "a delta is a small part of an anchor"
    assert run.audit().problems == []


def swapped(file: Path) -> dict[int, str]:
    """Digest of the engine's weights by version, of one process."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {int(version): digest for version, digest in (line.split() for line in lines)}


def compared(run: ToyRun, swaps: dict[int, str]) -> dict[int, tuple[str, str]]:
    """Digests of the rollout and of the trainer's checkpoint by version, where there are both."""
    found = {}
    for version in sorted(swaps):
        folder = run.directory.checkpoints / f"step_{version:06d}"  # One step per version.
        if (folder / "manifest.json").exists():
            found[version] = (swaps[version], weights_digest(load_file(folder / "model.safetensors")))
    return found
