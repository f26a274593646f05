import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.algo.routing import Experts, expert_modules, from_routing, gates, route_shape, to_routing
from asyncrl.messages.trajectory import RouteShape

LOGITS = torch.tensor([[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
EXPERTS = torch.tensor([[2, 1], [0, 1]])


def test_gates_are_a_softmax_over_the_given_experts() -> None:
    e = np.exp(1)
    np.testing.assert_allclose(
        gates(LOGITS, EXPERTS, renormalised=True), [[e / (e + 1), 1 / (e + 1)], [0.5, 0.5]], rtol=1e-6
    )


def test_a_router_that_does_not_renormalise_has_their_part_of_a_softmax_over_all() -> None:
    expected = LOGITS.softmax(-1).gather(1, EXPERTS)
    assert torch.equal(gates(LOGITS, EXPERTS, renormalised=False), expected)
    assert gates(LOGITS.bfloat16(), EXPERTS, renormalised=False).dtype == torch.float32


def test_all_logits_that_count_get_a_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    gates(logits, EXPERTS, renormalised=True)[:, 0].sum().backward()
    assert logits.grad is not None
    assert (logits.grad.abs() > 1e-6).tolist() == [[False, True, True, False], [True, True, False, False]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_experts_travel_in_one_byte_or_two(dtype: type) -> None:
    experts: Experts = np.arange(24, dtype=dtype).reshape(3, 4, 2)
    routing = to_routing(experts)
    assert (routing.layers, routing.top_k, routing.width) == (4, 2, experts.itemsize)
    assert routing.experts.nbytes == 3 * routing.token_bytes
    np.testing.assert_array_equal(from_routing(routing), experts)


def test_a_model_has_experts_in_some_layers_or_none() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 1, "num_key_value_heads": 1}
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "mlp_only_layers": [1]}
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, vocab_size=8, head_dim=8, intermediate_size=4))
    assert len(expert_modules(model)) == 2
    assert route_shape(model) == RouteShape(layers=2, top_k=2, num_experts=6)
    assert expert_modules(nn.Linear(2, 2)) == []
