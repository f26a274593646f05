from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.checkpoints.snapshot import host_copy
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.conftest import make_vision_model
from tests.trainer.model.adapter_directory import save_adapter

CPU = torch.device("cpu")
LORA = Lora(rank=2, alpha=3.0)


def adapted(path: Path, seed: int = 0, lora: Lora = LORA, **options: Any) -> Policy:
    """A policy whose adapters have learned something."""
    policy = Policy(path, lora=lora, **options)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters().values():
            weight.normal_(std=0.3)
    return policy


def logprobs(policy: Policy, trajectories: Sequence[TrainingTrajectory]) -> torch.Tensor:
    return policy.score(collate(trajectories, device=CPU), temperature=1.0).logprobs


def test_fresh_adapters_change_nothing(model_path, make_trajectories):
    trajectories = make_trajectories()
    assert torch.equal(
        logprobs(Policy(model_path, lora=LORA), trajectories), logprobs(Policy(model_path), trajectories)
    )


def test_published_weights_are_a_plain_model_with_the_same_logprobs(model_path, make_trajectories, tmp_path):
    policy, trajectories = adapted(model_path), make_trajectories()
    for config in policy.configs:
        config.save_pretrained(tmp_path)
    save_file({name: host_copy(weight) for name, weight in policy.saved_weights()}, tmp_path / "model.safetensors")
    plain = Policy(tmp_path)

    torch.testing.assert_close(logprobs(plain, trajectories), logprobs(policy, trajectories), rtol=1e-5, atol=1e-5)
    assert policy.specs() == plain.specs()
    for (name, weight), (other, published) in zip(plain.named_weights(), policy.named_weights(), strict=True):
        assert name == other
        torch.testing.assert_close(published, weight, rtol=0, atol=0)


def test_a_merged_weight_is_the_formula(model_path):
    policy, name = adapted(model_path), "model.layers.1.mlp.up_proj"
    down, up = (policy.parameters()[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    expected = policy.model.get_parameter(f"{name}.weight") + 3.0 / 2 * up @ down
    torch.testing.assert_close(dict(policy.named_weights())[f"{name}.weight"], expected)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_only_adapters_have_gradients(model_path, make_trajectories, gradient_checkpointing):
    policy = adapted(model_path, gradient_checkpointing=gradient_checkpointing)
    logprobs(policy, make_trajectories()).sum().backward()

    assert all(weight.grad is not None and weight.grad.any() for weight in policy.parameters().values())
    assert all(weight.grad is None for weight in policy.model.parameters())
    assert len(policy.parameters()) == 2 * 7 * 2  # A and B, of seven matrices, in two layers


def test_only_targets_are_adapted(model_path):
    policy = Policy(model_path, lora=Lora(rank=1, targets=["q_proj", "v_proj"]))
    layers = {name.split(".")[-3] for name in policy.parameters()}
    assert layers == {"q_proj", "v_proj"}


def test_an_unknown_target_is_refused_with_the_existing_ones(model_path):
    with pytest.raises(ConfigError, match=r"'query'.*down_proj, gate_proj.*v_proj"):
        Policy(model_path, lora=Lora(rank=1, targets=["query"]))


def test_a_model_without_linear_layers_is_refused(save_model):
    path = save_model(kind=(GPT2Config, GPT2LMHeadModel), eos_token_id=1, bos_token_id=0)
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel has no layer of type torch\.nn\.Linear"):
        Policy(path, lora=LORA)


def test_adapters_come_back_bit_for_bit(model_path, make_trajectories):
    policy, other, trajectories = adapted(model_path, seed=1), adapted(model_path, seed=2), make_trajectories()
    assert other.adapters is not None
    other.adapters.restore(dict(policy.parameters()))
    assert torch.equal(logprobs(other, trajectories), logprobs(policy, trajectories))


def test_adapters_of_another_rank_are_refused(model_path):
    policy, narrow = adapted(model_path), adapted(model_path, lora=Lora(rank=1))
    assert policy.adapters is not None
    with pytest.raises(LedgerError, match=r"expected \(2, .*got \(1, .*trainer\.lora"):
        policy.adapters.restore(dict(narrow.parameters()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_policy_starts_as_the_adapter_of_a_directory(model_path, make_trajectories, tmp_path, dtype, is_frozen):
    learned, policy = adapted(model_path), Policy(model_path, lora=LORA, dtype=dtype)
    assert policy.adapters is not None
    policy.adapters.restore(dict(learned.parameters()))
    start = save_adapter(tmp_path / "adapter", learned, LORA)
    found = Policy(model_path, lora=start, dtype=dtype, is_frozen=is_frozen)
    assert torch.equal(logprobs(found, make_trajectories()), logprobs(policy, make_trajectories()))


def test_a_frozen_policy_with_an_adapter_trains_nothing_and_stores_it_as_it_computes(model_path, tmp_path):
    start = save_adapter(tmp_path / "adapter", adapted(model_path), LORA)
    parameters = Policy(model_path, lora=start, dtype="bfloat16", is_frozen=True).parameters().values()
    assert {(weight.requires_grad, weight.dtype) for weight in parameters} == {(False, torch.bfloat16)}


@pytest.mark.parametrize(
    ("written", "read", "sentence"),
    [
        (
            LORA,
            {"targets": ["q_proj", "v_proj"]},
            r"has .*layers\.0\.mlp\.down_proj\.lora_A\.weight, unlike .*set trainer\.lora\.targets = \[\"down_proj",
        ),
        (
            Lora(rank=2, alpha=3.0, targets=["q_proj"]),
            {"targets": []},
            r"lacks .*down_proj\.lora_A\.weight, unlike .*set trainer\.lora\.targets = \[\"q_proj\"\]",
        ),
    ],
    ids=["too many layers", "too few layers"],
)
def test_an_adapter_of_other_layers_is_refused_with_its_layers(model_path, tmp_path, written, read, sentence):
    start = save_adapter(tmp_path / "adapter", adapted(model_path, lora=written), written)
    with pytest.raises(ConfigError, match=sentence):
        Policy(model_path, lora=replace(start, **read))


def test_an_adapter_of_another_model_is_refused_with_the_shapes(model_path, save_model, tmp_path):
    start = save_adapter(tmp_path / "adapter", adapted(save_model(intermediate_size=20)), LORA)
    with pytest.raises(ConfigError, match=r"down_proj\.lora_A\.weight has shape \[2, 20\].* must have \[2, 24\]"):
        Policy(model_path, lora=start)


def test_an_adapter_that_is_not_finite_is_refused(model_path, tmp_path):
    policy = adapted(model_path)
    with torch.no_grad():
        next(iter(policy.parameters().values()))[0, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"lora_A\.weight has values that are NaN or infinite"):
        Policy(model_path, lora=save_adapter(tmp_path / "adapter", policy, LORA))


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_vision_tower_has_no_adapters_and_stays_as_it_is(family, tmp_path):
    make_vision_model(tmp_path, family)
    plain = dict(Policy(tmp_path).named_weights())
    policy = adapted(tmp_path)
    assert not any("visual" in name for name in policy.parameters())

    for name, weight in policy.named_weights():
        assert torch.equal(weight, plain[name]) == (".layers." not in name or "norm" in name or "bias" in name), name
