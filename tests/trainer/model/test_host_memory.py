"""What layers keep and compute again changes no gradient."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError
from asyncrl.trainer.model import host_memory
from asyncrl.trainer.model.host_memory import HostActivations, enable_checkpointing, host_empty, moment_buckets
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.packed_attention import MASK_SIZE
from tests.patience import PATIENCE_S
from tests.weights.groups.fake_npu import installed_at

CPU = torch.device("cpu")


class Calls(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.of[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def backward(path, batch, how):
    """Gradients, and the operations of the backward pass."""
    policy = Policy(path, gradient_checkpointing=how)
    loss = policy.score(batch, temperature=1.0).logprobs.sum()
    with Calls() as calls:
        loss.backward()
    return [weight.grad for weight in policy.parameters().values()], calls.of


@pytest.mark.parametrize("model", ["model_path", "experts_path"])
def test_selective_recomputes_neither_attention_nor_products(request, make_trajectories, model):
    path, batch = request.getfixturevalue(model), collate(make_trajectories(), device=CPU)
    (kept, plain), (whole, again), (selective, some) = (
        backward(path, batch, how) for how in (False, True, "selective")
    )

    for gradients in (whole, selective):
        for gradient, expected in zip(gradients, kept, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
    attention = next(name for name in again if name.endswith("attention_for_cpu"))
    assert again[attention] > 0 == plain[attention] == some[attention]
    assert again["mm"] > some["mm"] == plain["mm"]
    assert again["rsqrt"] == some["rsqrt"] > plain["rsqrt"]


def test_dropout_is_refused(save_model):
    model = nn.Module()
    model.config = Policy(save_model(attention_dropout=0.5)).model.config
    with pytest.raises(ConfigError, match=r"^here: attention_dropout=0\.5"):
        enable_checkpointing(model, "here")


# ── test host memory ──────────────────────────────────────────────────────────────────────────
# What waits on the host, on a device as strict as torch's: the same numbers, and only the bytes that are in use.

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


# ── test host moments ─────────────────────────────────────────────────────────────────────────


def parameters(*sizes: int) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=random)) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [([3, 3, 4, 1], [[3, 3, 4], [1]]), ([20, 1], [[20], [1]]), ([5, 20, 5, 5], [[5], [20], [5, 5]]), ([], [[]])],
    ids=str,
)
def test_a_bucket_is_full_before_the_next_begins(monkeypatch: pytest.MonkeyPatch, sizes, cuts) -> None:
    monkeypatch.setattr(host_memory, "BUCKET", 10 * host_memory.ITEM)
    assert [[len(weight) for weight in bucket] for bucket in moment_buckets(parameters(*sizes))] == cuts


def test_moments_on_the_host_step_and_resume_as_those_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "BUCKET", 10 * host_memory.ITEM)
    states, weights = [], []
    for offload in ([], ["moments"]):
        trainer = Trainer(offload=offload)  # type: ignore[arg-type]
        named = {str(i): weight for i, weight in enumerate(parameters(5, 20, 5, 5))}
        steps = Optimizer(named, trainer, weight_decay=0.1, grad_clip=1.0)
        for step in range(4):
            if step == 2:
                saved = {name: moment.clone() for name, moment in steps.state().items()}
                steps = Optimizer(named, trainer, weight_decay=0.1, grad_clip=1.0)
                steps.restore(saved)
            for weight in named.values():
                weight.grad = weight.detach().cos() * (step + 1)
            steps.step(0.0, lr=0.1 / (step + 1))
        states.append(steps.state())
        weights.append(named)

    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(moment, states[1][name]) for name, moment in states[0].items())
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
