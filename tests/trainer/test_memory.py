"""What a trainer takes is what was planned: tensors counted in a step, and the memory of real ranks."""

import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from asyncrl.config.run_file import decode
from asyncrl.config.sections import Config
from asyncrl.errors import ConfigError
from asyncrl.trainer.activations import LiveBytes
from asyncrl.trainer.memory import Phase, TrainerMemory
from asyncrl.trainer.model import loading, policy
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import TrainingTrajectory, collate
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from tests.patience import PATIENCE_S
from tests.trainer.memory_process import Case

LENGTH = 24
"""Tokens of each prompt and of each completion."""
SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
DENSE = Qwen3Config(**SHAPE)
UNTIED = Qwen3Config(**SHAPE | {"tie_word_embeddings": False})
EXPERTS = Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64)


def saved(model: Any, path: Path) -> Path:
    """Directory of a model with random weights."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(model).save_pretrained(path)
    return path


def settings(path: Path, ranks: int, dtype: str = "float32", **trainer: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(path), "dtype": dtype},
        "data": {"train": "unused", "max_prompt_tokens": LENGTH},
        "sampling": {"max_tokens": LENGTH},
        "schedule": {"groups_per_step": ranks, "group_size": 4},
        "trainer": {"ranks": ranks, **trainer},
    }


def planned(path: Path, ranks: int, **options: Any) -> dict[str, Phase]:
    memory = TrainerMemory(decode(settings(path, ranks, **options)), path)
    return {phase.name: phase for phase in memory.phases()}


def part(phase: Phase, name: str) -> tuple[int, int]:
    """Bytes of a part on the device and on the host."""
    found = next(part for part in phase.parts if part.name == name)
    return found.device, found.host


# ── tensors of a step ───────────────────────────────────────────────────────────────────────


class RealBytes(LiveBytes):
    """`LiveBytes` that also sees how FSDP frees and allocates the storage of tensors that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local tensor comes next
        return super().__torch_dispatch__(func, types, args, kwargs)

    def add(self, tensor: Tensor) -> None:
        self._storages = {key: ref for key, ref in self._storages.items() if key in self._sizes}
        for key, ref in self._storages.items():
            if (storage := ref()) is not None and storage.nbytes() != self._sizes[key]:
                self.resize(key, storage.nbytes())
        if not tensor.is_meta:
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = weakref.ref(storage)
            super().add(tensor)


@pytest.fixture
def fake_ranks() -> Iterator[Callable[[int], DeviceMesh]]:
    """Rank 0 of any number of ranks, whose collectives move nothing."""

    def form(size: int) -> DeviceMesh:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        return init_device_mesh("cpu", (size,))

    yield form
    dist.destroy_process_group()


def step_bytes(config: Config, path: Path, mesh: DeviceMesh) -> tuple[int, int]:
    """Bytes after loading, and the peak of the second step: the first has no moments yet."""
    trajectories = [
        TrainingTrajectory(0, np.zeros(LENGTH, np.int32), np.zeros(LENGTH, np.int32), np.zeros(LENGTH, np.float32), 0.0)
        for _ in range(config.schedule.group_size)
    ]
    with RealBytes() as live:
        model = Policy(
            path,
            dtype=config.model.dtype,
            mesh=mesh,
            gradient_checkpointing=config.trainer.gradient_checkpointing,
            lora=config.trainer.lora,
        )
        optimizer = Optimizer(model.parameters(), config.trainer, weight_decay=0.0, grad_clip=0.0)
        loaded = live.now
        batch = collate(trajectories, device=torch.device("cpu"))
        for _ in range(2):
            live.restart()
            model.score(batch, temperature=1.0).logprobs.sum().backward()
            optimizer.step(0.0, lr=0.0)
        return loaded, live.restart()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("model", "dtype", "trainer"),
    [
        (DENSE, "float32", {}),
        (DENSE, "float32", {"gradient_checkpointing": True}),
        (DENSE, "bfloat16", {}),
        (UNTIED, "float32", {}),
        (EXPERTS, "float32", {"gradient_checkpointing": True}),
        (DENSE, "float32", {"lora": {"rank": 4}}),
    ],
    ids=["dense", "recomputed", "bfloat16", "untied", "experts", "lora"],
)
def test_a_step_takes_what_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_ranks: Any, ranks: int, model: Any, dtype: str, trainer: Any
) -> None:
    monkeypatch.setattr(loading, "_require_finite", lambda *_: None)
    monkeypatch.setattr(policy, "pack", lambda computation, *_: use_packed_attention(computation.model))
    monkeypatch.setattr(Policy, "_refuse_other_heads", lambda *_: None)  # weights that are gathered are garbage here
    monkeypatch.setattr("asyncrl.trainer.model.optimizer.isfinite", lambda _: True)
    path = saved(model, tmp_path)
    plan = planned(path, ranks, dtype=dtype, **trainer)

    loaded, peak = step_bytes(decode(settings(path, ranks, dtype, **trainer)), path, fake_ranks(ranks))

    kept = part(plan["load"], "weights")[0] + part(plan["load"], "gradients")[0]
    assert loaded == pytest.approx(kept, rel=0.01)
    assert peak == pytest.approx(plan["step"].device, rel=0.1)


# ── real ranks ──────────────────────────────────────────────────────────────────────────────

REAL = SHAPE | {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Memory that is freed goes back at once, so that what a process has is what it uses."""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_real_ranks_grow_by_what_was_planned(tmp_path: Path, ranks: int) -> None:
    path = saved(Qwen3Config(**REAL), tmp_path / "model")
    warm_up = saved(Qwen3Config(**SHAPE), tmp_path / "warm-up")
    raw = settings(path, ranks, gradient_checkpointing=True)
    (tmp_path / "case.json").write_bytes(msgspec.json.encode(Case(raw, str(warm_up))))
    command = [sys.executable, "-m", "tests.trainer.memory_process", str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=os.environ | AT_ONCE)
        for rank in range(ranks)
    ]
    found = [msgspec.json.decode(process.communicate(timeout=PATIENCE_S)[0]) for process in processes]
    plan = planned(path, ranks, gradient_checkpointing=True)

    kept = part(plan["load"], "weights")[0] + part(plan["load"], "gradients")[0]
    for grown in found:
        assert grown["load"] == pytest.approx(kept, rel=0.1)
        assert grown["step"] == pytest.approx(plan["step"].device, rel=0.1)
        assert grown["publish"] == pytest.approx(plan["publish"].device, rel=0.1)


# ── formulas ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory with nothing but config.json."""
    DENSE.save_pretrained(tmp_path)
    return tmp_path


def num_items(model: Any) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in AutoModelForCausalLM.from_config(model).parameters())


def test_a_config_without_weights_is_enough(bare: Path) -> None:
    memory = TrainerMemory(decode(settings(bare, 4)), bare)
    assert memory.sizes.whole == num_items(DENSE)
    assert memory.sizes.own == pytest.approx(num_items(DENSE) / 4, rel=0.01)
    assert memory.layout.num_bytes == pytest.approx(4 * num_items(DENSE), rel=0.01)


def test_ranks_in_groups_share_a_copy_each(bare: Path) -> None:
    assert planned(bare, 4, shard_size=2)["load"].parts[0].device == planned(bare, 2)["load"].parts[0].device


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_checkpoint_takes_one_tensor_of_the_host(bare: Path, ranks: int) -> None:
    on_cuda = TrainerMemory(decode(settings(bare, ranks, device="cuda")), bare)
    assert part(on_cuda.checkpoint(), "tensor to write") == (0, 4 * 1024 * 128)
    assert planned(bare, ranks)["checkpoint"].host == planned(bare, ranks)["step"].host


def test_versions_are_staged_on_the_host_and_sent_through_buckets_on_the_device(bare: Path) -> None:
    raw = settings(bare, 2, "bfloat16", device="cuda")
    nccl = TrainerMemory(decode(raw | {"weights": {"backend": "nccl"}}), bare)
    deltas = TrainerMemory(decode(raw | {"weights": {"backend": "gloo", "delta": True}}), bare)
    largest = max(bucket.num_bytes for bucket in nccl.layout.buckets)
    assert part(nccl.publish(), "staged versions") == (0, 2 * nccl.layout.num_bytes)
    assert part(nccl.publish(), "buckets to send") == (2 * largest, 0)
    assert part(deltas.publish(), "staged versions") == (0, 3 * nccl.layout.num_bytes)
    assert "buckets to send" not in {each.name for each in deltas.publish().parts}


def test_files_in_another_form_are_converted_on_every_ranks_host(tmp_path: Path) -> None:
    path = saved(DENSE, tmp_path)
    by_slices = planned(path, 2)["load"]
    file = path / "model.safetensors"
    tensors = load_file(file)
    save_file({name.replace("q_proj", "query"): tensor for name, tensor in tensors.items()}, file)

    assert part(by_slices, "slice of a file")[1] <= 4 * num_items(DENSE)
    assert part(planned(path, 2)["load"], "whole model, to convert") == (0, 2 * 4 * num_items(DENSE))


def test_a_reference_and_a_critic_take_their_share(bare: Path) -> None:
    raw = settings(bare, 2)
    reference = TrainerMemory(decode(raw | {"algorithm": {"kl_coef": 0.1}}), bare).step()
    critic = TrainerMemory(decode(raw | {"algorithm": {"advantage": "gae", "lam": 0.9}}), bare).step()
    weights, _ = part(critic, "weights")
    assert part(reference, "reference") == (weights, 0)
    assert part(critic, "critic")[0] == pytest.approx(weights, rel=0.01)
    assert part(critic, "moments")[0] == pytest.approx(4 * weights, rel=0.01)


def test_the_setting_to_change_first_is_named(bare: Path) -> None:
    kept, recomputed = (planned(bare, 2, gradient_checkpointing=on)["step"] for on in (False, True))
    named = [{part.name: part.setting for part in phase.parts}["activations"] for phase in (kept, recomputed)]
    assert named == ["trainer.gradient_checkpointing = true", "trainer.max_tokens_per_micro_batch"]


def test_a_config_that_no_model_can_be_made_by_is_one_sentence(bare: Path) -> None:
    text = (bare / "config.json").read_text()
    (bare / "config.json").write_text(text.replace('"hidden_act": "silu"', '"hidden_act": "unheard"'))
    with pytest.raises(ConfigError, match="no model can be made by its config"):
        planned(bare, 1)
