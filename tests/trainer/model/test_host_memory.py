"""What waits on the host, on a device as strict as torch's: the same numbers, and only the bytes that are in use."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.trainer.model.host_memory import HostActivations, host_empty
from asyncrl.trainer.packing.npu_attention import MASK_SIZE
from tests.patience import PATIENCE_S
from tests.weights.groups.fake_npu import installed_at

BF16, FLOAT32 = 2, 4
LAYERS = 6
BUCKET = 1 << 16
"""Bytes of moments on the device at a time in `offload_process`."""


def test_on_a_cpu_host_and_device_are_one_memory() -> None:
    weight, factor = torch.ones(3, requires_grad=True), torch.arange(3.0)
    with HostActivations(torch.device("cpu")):
        product = weight * factor
    node: Any = product.grad_fn
    assert node._saved_other.data_ptr() == factor.data_ptr()
    like = torch.ones(2, 3, dtype=torch.bfloat16)
    assert (host_empty(like).shape, host_empty(like).dtype) == (like.shape, like.dtype)


@pytest.mark.long("test_ranks.py has offloads as well")
def test_what_is_on_the_host_changes_no_number_and_takes_its_bytes_off_the_device(save_model, tmp_path: Path) -> None:
    path = save_model(hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS)
    command = [sys.executable, "-m", "tests.trainer.offload_process", str(path)]
    environment, root = installed_at(tmp_path), Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    found, plain = facts["found"], facts["found"][""]
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(path))
    items = sum(weight.numel() for weight in model.parameters())
    layer = sum(weight.numel() for weight in model.model.layers[0].parameters())

    assert facts["strays"] == []
    assert len(found) == 6
    for each in found.values():
        assert (each["metrics"], each["digest"]) == (plain["metrics"], plain["digest"]), "bit for bit"
    mask = MASK_SIZE**2
    assert plain["rest"] - mask == pytest.approx((4 * FLOAT32 + BF16) * items, rel=0.01)
    assert plain["rest"] - found["moments"]["rest"] == 2 * FLOAT32 * items
    assert plain["rest"] - found["reference"]["rest"] == BF16 * items
    assert found["parameters"]["rest"] - mask == pytest.approx(BF16 * items, rel=0.01), "the reference alone"
    assert found["parameters+reference+activations"]["rest"] - mask < 1000
    assert found["moments"]["updated"] <= BUCKET
    assert found["reference"]["scored"] <= BF16 * (items - LAYERS * layer + 2 * layer) + 20_000, "and activations"
    assert plain["passed"] - found["activations"]["passed"] >= (LAYERS - 1) * 32 * BF16 * 10, "ten tokens at least"
