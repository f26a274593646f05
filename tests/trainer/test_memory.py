"""What a trainer takes is what was planned: tensors counted in a step, and the memory of real ranks."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, Qwen3Config, Qwen3MoeConfig

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.trainer.activations import LiveBytes
from asyncrl.trainer.memory import ModelSizes, Phase, TrainerMemory, measure, meta_model
from asyncrl.trainer.model import loading, policy
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from asyncrl.trainer.packing.pictures import PackedPictures
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SequenceGroup
from asyncrl.vision.processor import ImageProcessor
from asyncrl.weights.contents.names import checkpoint_views, saved_tensors
from tests.conftest import make_vision_model
from tests.patience import PATIENCE_S
from tests.trainer.memory_process import Case

CPU = torch.device("cpu")
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
EXPERTS_APART = {"gradient_checkpointing": True, "expert_parallel": True}
AWAY = {"gradient_checkpointing": "selective", "offload": ["moments"]}
LARGE = pytest.mark.slow("a step of seconds on ranks that are not there")


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
        self.largest = 0
        """Bytes of the largest storage so far."""
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "RealBytes":
        resize_ = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            out = resize_(storage, size)
            if storage._cdata in self._sizes:
                self.resize(storage._cdata, storage.nbytes())
            return out

        self._patch.setattr(torch.UntypedStorage, "resize_", resized)
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._patch.undo()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local tensor comes next
        return super().__torch_dispatch__(func, types, args, kwargs)

    def add(self, tensor: Tensor) -> None:
        if not tensor.is_meta and not isinstance(tensor, FakeTensor):  # DTensor asks fakes for shapes
            self.largest = max(self.largest, tensor.untyped_storage().nbytes())
            super().add(tensor)


@pytest.fixture
def fake_ranks() -> Iterator[Callable[[int], DeviceMesh]]:
    """Rank 0 of any number of ranks, whose collectives move nothing."""

    def form(size: int) -> DeviceMesh:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        return init_device_mesh("cpu", (size,))

    yield form
    if dist.is_initialized():
        dist.destroy_process_group()


class Measured(NamedTuple):
    """Bytes."""

    loaded: int
    peak: int
    """Of the second step: the first has no moments yet."""
    largest: int
    """Of one tensor in steps. Before, transformers makes each parameter for a moment, without values."""


def step_bytes(config: Config, path: Path, mesh: DeviceMesh, pictured: MicroBatch | None = None) -> Measured:
    """Of a micro-batch of text, unless there is one with pictures."""
    sharing = config.trainer.sequence_parallel
    group, _ = dist.new_subgroups(sharing)
    trajectories = [
        TrainingTrajectory(0, prompt, np.full(LENGTH, index, np.int32), np.zeros(LENGTH, np.float32), 0.0)
        for prompt in (np.full(LENGTH, group_id, np.int32) for group_id in range(sharing))
        for index in range(config.schedule.group_size)
    ]
    with RealBytes() as live:
        model = Policy(
            path,
            dtype=config.model.dtype,
            mesh=mesh,
            gradient_checkpointing=config.trainer.gradient_checkpointing,
            expert_parallel=config.trainer.expert_parallel,
            freeze_vision=config.trainer.freeze_vision,
            lora=config.trainer.lora,
            offload=config.trainer.offload,
        )
        optimizer = Optimizer(model.parameters(), config.trainer, weight_decay=0.0, grad_clip=0.0)
        loaded, live.largest = live.now, 0
        parts = (collate(trajectories, device=CPU, group=SequenceGroup(sharing, i, group)) for i in range(sharing))
        batch = pictured or max(parts, key=lambda part: len(part.token_ids))
        for _ in range(2):
            live.restart()
            model.score(batch, temperature=1.0).logprobs.sum().backward()
            optimizer.step(0.0, lr=0.0)
        return Measured(loaded, live.restart(), live.largest)


@pytest.fixture
def _garbage_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are gathered from fake ranks are garbage, and so is all that is computed with them."""
    monkeypatch.setattr(loading, "_require_finite", lambda *_: None)
    monkeypatch.setattr(policy, "pack", lambda computation, *_: use_packed_attention(computation.model))
    monkeypatch.setattr(Policy, "_refuse_other_heads", lambda *_: None)
    monkeypatch.setattr("asyncrl.trainer.model.optimizer.isfinite", lambda _: True)


@pytest.mark.usefixtures("_garbage_is_accepted")
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=LARGE)])
@pytest.mark.parametrize(
    ("model", "dtype", "trainer"),
    [
        pytest.param(DENSE, "float32", {}, id="dense"),
        pytest.param(DENSE, "float32", {"gradient_checkpointing": True}, id="recomputed"),
        pytest.param(DENSE, "bfloat16", {}, id="bfloat16"),
        pytest.param(UNTIED, "float32", {}, id="untied", marks=LARGE),
        pytest.param(EXPERTS, "float32", {"gradient_checkpointing": True}, id="experts", marks=LARGE),
        pytest.param(EXPERTS, "float32", EXPERTS_APART, id="parallel", marks=LARGE),
        pytest.param(EXPERTS, "bfloat16", {"expert_parallel": True}, id="parallel-rounded", marks=LARGE),
        pytest.param(DENSE, "float32", {"lora": {"rank": 4}}, id="lora"),
        pytest.param(DENSE, "float32", {"sequence_parallel": 2}, id="shared-rows"),
        pytest.param(DENSE, "bfloat16", AWAY, id="moments-away"),
        pytest.param(UNTIED, "bfloat16", {"offload": ["parameters"]}, id="parameters-away", marks=LARGE),
    ],
)
def test_a_step_takes_what_was_planned(
    tmp_path: Path, fake_ranks: Any, ranks: int, model: Any, dtype: str, trainer: Any
) -> None:
    path = saved(model, tmp_path)
    plan = planned(path, ranks, dtype=dtype, **trainer)

    found = step_bytes(decode(settings(path, ranks, dtype, **trainer)), path, fake_ranks(ranks))

    kept = {
        each.name: each.device + each.host // ranks for each in plan["step"].parts if each.name != "staged versions"
    }
    assert found.loaded == pytest.approx(kept["weights"] + kept["gradients"], rel=0.01)
    assert found.peak == pytest.approx(sum(kept.values()), rel=0.1), "on a CPU the host is the device"


@pytest.mark.usefixtures("_garbage_is_accepted")
@pytest.mark.parametrize("parallel", [False, True], ids=["gathered", "parallel"])
def test_no_rank_ever_holds_the_experts_of_another(tmp_path: Path, fake_ranks: Any, parallel: bool) -> None:
    """A rank's half of the largest fused parameter is the largest tensor of a step."""
    path = saved(Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256), tmp_path)
    fused = 4 * 8 * (2 * 256) * SHAPE["hidden_size"]
    found = step_bytes(decode(settings(path, 2, expert_parallel=parallel)), path, fake_ranks(2))
    assert (found.largest == fused // 2) == parallel
    assert (found.largest >= fused) == (not parallel)


# ── real ranks ──────────────────────────────────────────────────────────────────────────────

REAL = SHAPE | {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Memory that is freed goes back at once, so that what a process has is what it uses."""


@pytest.mark.long("half a minute of both cores; ranks that are not processes are measured above")
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


def test_experts_that_cannot_be_spread_are_refused_before_a_run(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM has no experts"):
        planned(bare, 2, expert_parallel=True)
    EXPERTS.save_pretrained(tmp_path / "experts")
    with pytest.raises(ConfigError, match="8 experts cannot be spread evenly over the 3 ranks"):
        planned(tmp_path / "experts", 3, expert_parallel=True)


def test_an_anchor_is_a_copy_of_what_is_trained_on_the_host(bare: Path) -> None:
    correction = {"mode": "decoupled", "anchor": "publish"}
    raw = settings(bare, 2) | {"algorithm": {"correction": correction}}
    raw["schedule"] |= {"steps_per_publish": 4}
    memory = TrainerMemory(decode(raw), bare)
    assert part(memory.step(), "anchor") == (0, 2 * 4 * memory.sizes.own)


def test_ranks_in_groups_share_a_copy_each(bare: Path) -> None:
    assert planned(bare, 4, shard_size=2)["load"].parts[0].device == planned(bare, 2)["load"].parts[0].device


def test_a_model_whose_heads_the_ranks_of_a_row_do_not_divide_is_no_plan(bare: Path) -> None:
    with pytest.raises(ConfigError, match="sequence_parallel is 8, which does not divide the 4 attention heads"):
        planned(bare, 8, sequence_parallel=8)


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


def test_a_reference_has_the_adapter_that_training_starts_from(bare: Path) -> None:
    lora = {"rank": 4, "path": "adapter"}  # sizes are known without its files
    raw = settings(bare, 2, lora=lora) | {"algorithm": {"kl_coef": 0.1}}
    step = TrainerMemory(decode(raw), bare).step()
    plain = TrainerMemory(decode(settings(bare, 2, lora={"rank": 4}) | {"algorithm": {"kl_coef": 0.1}}), bare).step()
    assert part(step, "reference") == part(step, "weights")
    assert part(plain, "reference") < part(step, "reference")


def test_a_reference_and_a_critic_take_their_share(bare: Path) -> None:
    raw = settings(bare, 2)
    reference = TrainerMemory(decode(raw | {"algorithm": {"kl_coef": 0.1}}), bare).step()
    critic = TrainerMemory(decode(raw | {"algorithm": {"advantage": "gae", "lam": 0.9}}), bare).step()
    half = TrainerMemory(decode(settings(bare, 2, "bfloat16") | {"algorithm": {"kl_coef": 0.1}}), bare).step()
    weights, _ = part(critic, "weights")
    assert part(reference, "reference") == (weights, 0)
    assert part(half, "reference") == (weights // 2, 0), "nothing in training rounds it"
    assert part(critic, "critic")[0] == pytest.approx(weights, rel=0.01)
    assert part(critic, "moments")[0] == pytest.approx(4 * weights, rel=0.01)


def test_the_setting_to_change_first_is_named(bare: Path) -> None:
    one_trajectory = {"max_tokens_per_micro_batch": 2 * LENGTH}
    options: list[dict[str, Any]] = [{}, {"gradient_checkpointing": True}]
    options.append(options[1] | one_trajectory)
    phases = [planned(bare, 2, **each)["step"] for each in options]
    named = [{part.name: part.setting for part in phase.parts}["activations"] for phase in phases]
    assert named == [
        "trainer.gradient_checkpointing = true",
        "trainer.max_tokens_per_micro_batch",
        "trainer.sequence_parallel",
    ]


def test_what_is_on_the_host_is_planned_there(bare: Path) -> None:
    def step(*offload: str) -> Phase:
        raw = settings(bare, 2, "bfloat16", device="cuda", gradient_checkpointing=True, offload=list(offload))
        return TrainerMemory(decode(raw | {"algorithm": {"kl_coef": 0.1}}), bare).step()

    plain = step()
    for offload, names in (
        (("moments",), ["moments"]),
        (("reference",), ["reference"]),
        (("parameters", "reference"), ["weights", "gradients", "moments", "reference"]),
    ):
        found = step(*offload)
        assert [part(found, name) for name in names] == [(0, 2 * part(plain, name)[0]) for name in names]
    inputs = part(step("activations"), "inputs of layers")[1]
    tokens = LENGTH + 4 * (LENGTH - 1)  # nothing is predicted from the last one
    assert inputs == 2 * SHAPE["num_hidden_layers"] * 2 * SHAPE["hidden_size"] * tokens
    assert part(step("activations"), "activations")[0] < part(plain, "activations")[0]


def test_on_a_device_the_host_is_the_remedy(bare: Path) -> None:
    raw = settings(bare, 2, "bfloat16", device="cuda", offload=["moments"]) | {"algorithm": {"kl_coef": 0.1}}
    named = {part.name: part.setting for part in TrainerMemory(decode(raw), bare).step().parts}
    assert named["reference"] == 'trainer.offload = ["moments", "reference"]'
    assert named["weights"] == 'trainer.ranks, more devices to shard over, or trainer.offload = ["parameters"]'
    assert named["moments"] == "trainer.offload, which names 'moments',"


# ── pictures ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_frozen_tower_has_weights_and_neither_gradients_nor_moments(tmp_path: Path, family: str) -> None:
    make_vision_model(tmp_path, family)
    whole, frozen = (planned(tmp_path, 2, freeze_vision=freeze)["step"] for freeze in (False, True))
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    tower, rest = (
        sum(-(-weight.shape[0] // 2) * weight[0].numel() for name, weight in model.named_parameters() if of(name))
        for of in (lambda name: "visual" in name, lambda name: "visual" not in name)
    )
    assert part(whole, "weights") == part(frozen, "weights") == (4 * (tower + rest), 0)
    assert part(whole, "moments")[0] == 2 * part(whole, "gradients")[0] == 8 * (tower + rest)
    assert part(frozen, "moments")[0] == 2 * part(frozen, "gradients")[0] == 8 * rest
    assert part(frozen, "activations")[0] < part(whole, "activations")[0]


SIDE = 6
"""Tokens along each side of the picture that a prompt is."""


@pytest.mark.slow("a step of each of many models")
@pytest.mark.usefixtures("_garbage_is_accepted")
@pytest.mark.parametrize(
    ("dtype", "trainer"),
    [
        ("float32", {}),
        ("float32", {"gradient_checkpointing": True}),
        ("bfloat16", {"freeze_vision": True}),
        ("bfloat16", {"lora": {"rank": 4}}),
    ],
    ids=["plain", "recomputed", "frozen", "lora"],
)
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_step_with_pictures_takes_what_was_planned(
    tmp_path: Path, fake_ranks: Any, family: str, dtype: str, trainer: Any
) -> None:
    make_vision_model(tmp_path, family)
    raw = settings(tmp_path, 2, dtype, **trainer)
    raw["data"]["max_prompt_tokens"] = SIDE**2
    plan = {phase.name: phase for phase in TrainerMemory(decode(raw), tmp_path).phases()}["step"]

    found = step_bytes(decode(raw), tmp_path, fake_ranks(2), one_picture(tmp_path))
    kept = {each.name: each.device for each in plan.parts}
    assert found.loaded == pytest.approx(kept["weights"] + kept["gradients"], rel=0.02)
    assert found.peak == pytest.approx(sum(kept.values()), rel=0.1)


def one_picture(path: Path) -> MicroBatch:
    """A prompt that is one picture, with the completions of its group."""
    processor = ImageProcessor.load(path)
    assert processor
    prompt = np.full(SIDE**2, processor.image_token_id, np.int32)
    group = [
        TrainingTrajectory(0, prompt, np.full(LENGTH, index, np.int32), np.zeros(LENGTH, np.float32), 0.0)
        for index in range(4)
    ]
    grid = torch.tensor([[1, 2 * SIDE, 2 * SIDE]])
    pictures = PackedPictures(torch.zeros(4 * SIDE**2, 3 * 2 * 4 * 4), grid, torch.arange(SIDE**2))
    return replace(collate(group, device=CPU), pictures=pictures)


def test_a_critic_beside_a_model_that_reads_pictures_is_refused(tmp_path: Path) -> None:
    make_vision_model(tmp_path)
    config = decode(settings(tmp_path, 1) | {"algorithm": {"advantage": "gae"}})
    with pytest.raises(ConfigError, match=r"has a critic, which reads no pictures, but model\.path=.* does; use an"):
        TrainerMemory(config, tmp_path)


# ── test sizes ────────────────────────────────────────────────────────────────────────────────

SHAPE_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "tie_word_embeddings": False,
}
EXPERTS_SIZES = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
HEAD = 101 * 16


def made(path: Path, config: Any) -> Any:
    config.save_pretrained(path)
    return meta_model(path, AutoModelForCausalLM, "model.path")


def sizes(model: Any, shards: int = 1, **options: bool) -> ModelSizes:
    return measure(model, model, checkpoint_views(model, saved_tensors(model)) or [], shards=shards, **options)


def test_a_model_has_its_root_and_equal_layers(tmp_path):
    model = made(tmp_path, Qwen3Config(**SHAPE_SIZES))
    found = sizes(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert found.whole == found.trained == found.own == sum(parameter.numel() for parameter in model.parameters())
    assert (found.root, found.head_trained, found.parameter) == (2 * HEAD + 16, HEAD, HEAD)
    assert found.whole == found.root + 3 * found.layer


def test_a_rank_holds_as_many_rows_as_any_other(tmp_path):
    found = sizes(made(tmp_path, Qwen3Config(**SHAPE_SIZES)), shards=2)
    embedding = (HEAD + 16) // 2
    assert found.own - 2 * embedding == (found.whole - 2 * HEAD) // 2, "of 101 rows the first rank holds 51"
    assert found.slice == embedding


def test_what_is_frozen_is_not_trained(tmp_path):
    model = made(tmp_path, Qwen3Config(**SHAPE_SIZES)).requires_grad_(False)
    model.get_output_embeddings().weight.requires_grad_()
    found = sizes(model)
    assert (found.trained, found.root_trained, found.head_trained, found.layer_trained) == (HEAD, HEAD, HEAD, 0)


def test_experts_that_stay_are_of_no_layer_that_is_gathered(tmp_path):
    model = made(tmp_path, Qwen3MoeConfig(**SHAPE_SIZES | EXPERTS_SIZES))
    gathered, parallel = sizes(model), sizes(model, expert_parallel=True)
    assert gathered.layer - parallel.layer == 4 * (3 * 8 * 16), "gate, up and down of 4 experts"
    assert gathered.whole == parallel.whole


def test_a_config_that_no_model_can_be_made_by_is_one_sentence(tmp_path):
    made(tmp_path, Qwen3Config(**SHAPE_SIZES))
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"hidden_act": "silu"', '"hidden_act": "unheard"'))
    with pytest.raises(ConfigError, match=r"model\.path=.*: no model can be made by its config"):
        meta_model(tmp_path, AutoModelForCausalLM, "model.path")


def test_a_meta_model_takes_options_of_its_config(tmp_path):
    Qwen3Config(**SHAPE_SIZES).save_pretrained(tmp_path)
    model = meta_model(tmp_path, AutoModelForCausalLM, "model.path", num_hidden_layers=1)
    assert len(model.model.layers) == 1
    assert next(model.parameters()).dtype == torch.float32
