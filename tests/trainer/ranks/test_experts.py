"""What each rank computes with its experts is in `test_ranks`, and what it holds in `tests.trainer.test_memory`."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3Config, Qwen3MoeConfig

from asyncrl.algo.routing import expert_modules
from asyncrl.errors import ConfigError
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks.experts import grouped_linear, require_experts
from asyncrl.trainer.ranks.ranks import RankGroup

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 16,
}


@pytest.fixture
def group() -> Iterator[RankGroup]:
    group = RankGroup(HashStore(), rank=0, size=1, timeout_s=60.0)
    yield group
    group.close()


def on_meta(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def parameter_groups(module: Any) -> Any:
    state = module._get_fsdp_state()
    return state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]


def test_experts_are_of_no_module_that_gathers(group, even_experts_path):
    policy = Policy(even_experts_path, mesh=group.mesh, expert_parallel=True)
    gathering = [module for module in policy._computation.modules() if isinstance(module, FSDPModule)]
    gathered = {
        str(parameter._param_fqn)
        for module in gathering
        for gathered_as_one in parameter_groups(module)
        for parameter in gathered_as_one.fsdp_params
    }
    assert len(gathering) == 4, "three layers, and the computation"
    assert not any("experts" in name for name in gathered)
    assert any("mlp.gate" in name for name in gathered), "the router is"
    for experts in expert_modules(policy.model):
        assert all(isinstance(weight, DTensor) and weight.placements[0].is_shard(0) for weight in experts.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("parallel", [False, True], ids=["gathered", "parallel"])
def test_experts_are_grouped_products_in_the_dtype_that_is_computed_with(
    group, even_experts_path, make_trajectories, monkeypatch, dtype, parallel
):
    seen = set()
    product = F.grouped_mm

    def look(first: Tensor, second: Tensor, **options: Any) -> Tensor:
        seen.add((first.dtype, second.dtype))
        return product(first, second, **options)

    policy = Policy(even_experts_path, dtype=dtype, mesh=group.mesh, expert_parallel=parallel)
    monkeypatch.setattr(F, "grouped_mm", look)
    policy.score(collate(make_trajectories(), device=CPU), temperature=1.0).logprobs.sum().backward()

    assert seen == {(getattr(torch, dtype),) * 2}
    for experts in expert_modules(policy.model):
        weight = experts.get_parameter("down_proj")
        assert weight.grad is not None
        assert weight.dtype == weight.grad.dtype == torch.float32


@pytest.mark.parametrize("rows", [[3, 0, 4], [0, 0, 0], [0, 7, 0]])
def test_a_grouped_product_is_a_product_for_each_expert(rows):
    random = torch.Generator().manual_seed(0)
    ends = torch.tensor(rows).cumsum(0).to(torch.int32)
    tokens = torch.randn(sum(rows), 8, generator=random, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(3, 16, 8, generator=random).requires_grad_()
    expected = torch.cat([part @ one.T for part, one in zip(tokens.split(rows), weight, strict=True)])
    of_output = torch.randn(expected.shape, generator=random)

    found = grouped_linear(tokens, weight, ends)
    gradients = [torch.autograd.grad(out, (tokens, weight), of_output) for out in (found, expected)]

    torch.testing.assert_close(found, expected)
    for own, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(own, plain)


def test_no_copy_in_another_dtype_is_kept_for_the_backward_pass():
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    weight = torch.randn(2, 16, 8).requires_grad_()
    tokens = torch.randn(4, 8).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = grouped_linear(tokens, weight, torch.tensor([1, 4], dtype=torch.int32))

    assert out.dtype == torch.bfloat16
    assert [tuple(tensor.shape) for tensor in kept] == [(4, 8), (2,)]


@pytest.mark.parametrize(
    ("config", "ranks", "sentence"),
    [
        (Qwen3Config(**SIZES), 2, "m: Qwen3ForCausalLM has no experts that trainer.expert_parallel could spread over"),
        (
            Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2),
            4,
            "m: 6 experts cannot be spread evenly over the 4 ranks .*; use a trainer.shard_size that divides 6",
        ),
        (GptOssConfig(**SIZES, num_local_experts=4), 2, "m: the experts of GptOssForCausalLM have biases, transposed"),
    ],
    ids=["dense", "uneven", "biased"],
)
def test_a_model_whose_experts_cannot_be_spread_is_refused_in_a_sentence(config, ranks, sentence):
    with pytest.raises(ConfigError, match=sentence):
        require_experts(on_meta(config), ranks, "m")


def test_modules_without_fused_experts_are_none_of_experts():
    assert expert_modules(nn.Linear(2, 2)) == []
    require_experts(on_meta(Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2)), 3, "m")
