"""
A trainer on ``npu:0`` of the fake for each choice of what is on the host; prints what it computes and takes as JSON.

Run it with a model directory, in the environment that `fake_npu.installed_at` returns.
"""

import gc
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from asyncrl.config.run_file import decode
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.model import host_memory
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks.ranks import SingleRank
from asyncrl.weights.groups.device import device_thread
from tests.trainer.ragged_trajectories import ragged_trajectories

STEPS = 2
CHOICES: tuple[list[str], ...] = (
    [],
    ["moments"],
    ["reference"],
    ["activations"],
    ["parameters"],
    ["parameters", "reference", "activations"],
)


class Peak(TorchDispatchMode):
    """The most bytes on devices after an operation in this block."""

    def __init__(self, device_bytes: Any) -> None:
        super().__init__()
        self._device_bytes = device_bytes
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local tensor comes next
        out = func(*args, **(kwargs or {}))
        self.num_bytes = max(self.num_bytes, self._device_bytes())
        return out


def measure(model: str, offload: list[str], device_bytes: Any) -> dict[str, Any]:
    config = decode(
        {
            "model": {"path": model, "dtype": "bfloat16"},
            "data": {"train": "unused", "max_prompt_tokens": 16},
            "sampling": {"max_tokens": 20},
            "trainer": {"lr": 1e-3, "device": "npu", "gradient_checkpointing": True, "offload": offload},
            "algorithm": {"kl_coef": 0.1},
        }
    )
    learner = Learner(config, Path(model), ranks=SingleRank("npu"))
    metrics = [learner.train(ragged_trajectories(num_groups=2, group_size=2, seed=seed)) for seed in range(STEPS)]
    gc.collect()
    rest = device_bytes()
    snapshot = learner.snapshot()
    learner.resume(STEPS, snapshot.tensors)
    gc.collect()
    assert device_bytes() == rest, "a resume puts everything where it was"
    digest = hashlib.sha256()
    for tensor in (*snapshot.weights.values(), *snapshot.tensors["optimizer"].values()):
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    batch = collate(ragged_trajectories(num_groups=1, group_size=2), device=torch.device("npu", 0))
    with torch.no_grad(), Peak(device_bytes) as scored:
        learner._models.reference.score(batch, temperature=1.0)  # type: ignore[union-attr]
    with Peak(device_bytes) as updated:
        learner._models.optimizer.step(0.0, lr=0.0)
    with Peak(device_bytes) as passed:
        learner.policy.score(batch, temperature=1.0).logprobs.sum().backward()
    return {
        "metrics": metrics,
        "digest": digest.hexdigest(),
        "rest": rest,
        "scored": scored.num_bytes - rest,
        "updated": updated.num_bytes - rest,
        "passed": passed.num_bytes - rest,
    }


def main(model: str) -> dict[str, Any]:
    host_memory.BUCKET = 1 << 16
    found = {}
    with device_thread(SingleRank("npu").device, "trainer-compute") as thread:
        torch_npu: Any = importlib.import_module("torch_npu")
        for offload in CHOICES:
            found["+".join(offload)] = thread.submit(measure, model, offload, torch_npu.device_bytes).result()
            dist.destroy_process_group()
            gc.collect()
    return {"strays": torch_npu.STRAYS, "found": found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])))
