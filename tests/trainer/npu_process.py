"""
A trainer on ``npu:0`` of the fake, beside one on the CPU; prints the metrics of their steps as JSON.

Run it with a model directory, in the environment that `fake_npu.installed_at` returns.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from asyncrl.config.run_file import decode
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.ranks import SingleRank
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import device_thread, staging_device
from asyncrl.weights.staging import Staging
from tests.trainer.ragged_trajectories import ragged_trajectories

STEPS = 2


def held_bytes(learner: Learner) -> int:
    """Bytes of all storages of the learner."""
    storages = [tensor.untyped_storage() for tensors in learner._models.memory() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def steps(model: str, kind: str) -> tuple[list[dict[str, float]], dict[str, Any], tuple[int, int, int]]:
    """
    Metrics of each step, after which the model sleeps; the published weights; and bytes: held awake, moved to sleep,
    held asleep.
    """
    config = decode(
        {
            "model": {"path": model},
            "data": {"train": "unused", "max_prompt_tokens": 16},
            "sampling": {"max_tokens": 20},
            "trainer": {"lr": 1e-3, "device": kind, "max_tokens_per_micro_batch": 64},
            "algorithm": {"kl_coef": 0.1, "entropy_coef": 0.01},
        }
    )
    ranks = SingleRank(kind)
    learner = Learner(config, Path(model), ranks=ranks)
    metrics = []
    for seed in range(STEPS):
        metrics.append(learner.train(ragged_trajectories(seed=seed)))
        awake, moved, asleep = held_bytes(learner), learner.sleep(), held_bytes(learner)
        learner.wake()
    device = staging_device("gloo", ranks.device)
    staging = Staging(Layout(learner.policy.specs(), 1 << 20), device, beside=ranks.device)
    for name, weight in learner.named_weights():
        staging.tensors[name].copy_(weight)
    learner.snapshot()
    return metrics, {name: weight.tolist() for name, weight in staging.tensors.items()}, (awake, moved, asleep)


def main(model: str) -> dict[str, Any]:
    found = {}
    for kind in ("cpu", "npu"):
        with device_thread(SingleRank(kind).device, "trainer-compute") as thread:
            found[kind] = thread.submit(steps, model, kind).result()
    torch_npu: Any = importlib.import_module("torch_npu")
    return {"strays": torch_npu.STRAYS, "pinned": len(torch_npu.PINNED), **found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])))
