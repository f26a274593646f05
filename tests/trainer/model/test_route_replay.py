from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.algo.routing import expert_modules
from asyncrl.errors import ConfigError
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.model.route_replay import ExpertLoad, HeldExperts, RouteReplay, load_metrics
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks.ranks import SingleRank


class Experts(nn.Module):
    """Fused experts that return their input."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.down_proj = nn.Parameter(torch.zeros(num_experts, 1, 1))

    def forward(self, states: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        return states


def route(model: nn.Module, *chosen: list[list[int]]) -> None:
    """Compute each layer with [T, K] chosen experts."""
    for layer, indices in zip(model.children(), chosen, strict=True):
        layer(torch.zeros(len(indices), 1), torch.tensor(indices), torch.ones(len(indices), len(indices[0])))


def positions(*places: int) -> Tensor:
    return torch.tensor(places)


@pytest.mark.parametrize(
    ("tokens", "max_load", "unused"),
    [
        ([[5, 5, 5, 5]], 1.0, 0.0),
        ([[10, 10, 0, 0]], 2.0, 0.5),
        ([[20, 0, 0, 0], [5, 5, 5, 5]], 2.5, 0.375),
    ],
    ids=["even", "only two", "a layer of one"],
)
def test_the_largest_load_is_relative_to_an_even_one(tokens, max_load, unused):
    found = load_metrics(np.array(tokens))
    assert found == {"experts/max_load": pytest.approx(max_load), "experts/unused_fraction": unused}


def test_each_counted_position_counts_once_for_each_of_its_experts():
    model = nn.Sequential(Experts(4), Experts(4))
    load = ExpertLoad(model)
    with load.counting(positions(0, 0, 2)):
        route(model, [[0, 1], [2, 3], [0, 2]], [[0, 1], [2, 3], [2, 3]])
    route(model, [[3, 2]], [[3, 2]])  # outside, as when a layer is recomputed
    assert load._tokens is not None
    assert load._tokens.tolist() == [[3, 2, 1, 0], [2, 2, 1, 1]]
    assert load.metrics(SingleRank()) == {
        "experts/max_load": pytest.approx(4 * (3 / 6 + 2 / 6) / 2),
        "experts/unused_fraction": 1 / 8,
    }
    assert load.metrics(SingleRank()) == {}, "the next update begins at zero"


def test_ranks_add_their_tokens_also_those_without_any():
    model = nn.Sequential(Experts(2))
    load = ExpertLoad(model)

    class Other(SingleRank):
        def all_gather(self, data: bytes) -> list[bytes]:
            return [data, np.array([[0, 3]]).tobytes(), np.array([[0, 0]]).tobytes()]

    with load.counting(positions(0)):
        route(model, [[0]])
    assert load.metrics(Other()) == {"experts/max_load": pytest.approx(1.5), "experts/unused_fraction": 0.0}


def test_a_model_without_experts_has_no_metrics():
    assert ExpertLoad(nn.Linear(1, 1)).metrics(SingleRank()) == {}
    assert load_metrics(np.zeros((2, 4), np.int64)) == {}


def test_trained_tokens_are_counted_once_however_layers_are_recomputed(even_experts_path, make_trajectories):
    trajectories = make_trajectories()
    counted: list[list[Any]] = []
    for recomputed in (False, True):
        policy = Policy(even_experts_path, gradient_checkpointing=recomputed)
        batch = collate(trajectories, device=torch.device("cpu"))
        with policy.expert_load.counting(batch.positions):
            scores = policy.score(batch, temperature=1.0)
        scores.logprobs.sum().backward()
        assert policy.expert_load._tokens is not None
        counted.append(policy.expert_load._tokens.tolist())

    assert counted[0] == counted[1]
    assert [sum(layer) for layer in counted[0]] == [2 * len(batch.token_ids)] * 2


# ── test route replay ─────────────────────────────────────────────────────────────────────────
# That tokens then have the sampler's log-probs is in `tests.integration.test_route_replay`.

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 16,
    "initializer_range": 0.3,
}
IDS = torch.arange(6)[None]
ROUTES = torch.tensor([[[3, 0], [1, 2]]], dtype=torch.uint8).expand(6, 2, 2)
"""Of six tokens, in two layers."""


def qwen(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": [1]}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **(config | changes)))


def mixtral() -> Any:
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))


@pytest.fixture
def taken() -> dict[int, tuple[Tensor, Tensor]]:
    """Experts and gates of each layer of experts in the last forward pass, once `watch` was called."""
    return {}


def watch(model: nn.Module, taken: dict[int, tuple[Tensor, Tensor]]) -> None:
    for layer, experts in enumerate(expert_modules(model)):
        experts.register_forward_pre_hook(lambda _, args, layer=layer: taken.update({layer: (args[1], args[2])}))


@pytest.mark.parametrize("renormalised", [True, False])
def test_every_token_takes_the_experts_it_is_sent_to_with_gates_of_the_models_kind(taken, renormalised: bool) -> None:
    model = qwen(norm_topk_prob=renormalised)
    replay = RouteReplay(model, "model.path=m")
    watch(model, taken)
    own = model(IDS).logits
    replay.routes = ROUTES
    sent = model(IDS).logits

    assert (replay.shape.layers, replay.shape.top_k, replay.shape.num_experts) == (2, 2, 4)
    assert not torch.allclose(own, sent)
    for layer in range(2):
        experts, gates = taken[layer]
        assert torch.equal(experts, ROUTES[:, layer].long())
        assert torch.allclose(gates.sum(-1), torch.ones(6)) == renormalised
    replay.routes = None
    assert torch.equal(model(IDS).logits, own)


def test_the_experts_that_a_model_takes_by_itself_change_nothing(taken) -> None:
    for model in (qwen(), qwen(norm_topk_prob=True)):
        replay = RouteReplay(model, "model.path=m")
        watch(model, taken)
        own = model(IDS).logits
        replay.routes = torch.stack([experts for experts, _ in taken.values()], 1).to(torch.int16)
        torch.testing.assert_close(model(IDS).logits, own)


def test_another_family_is_replayed_by_the_same_hooks(taken) -> None:
    model = mixtral()
    replay = RouteReplay(model, "model.path=m")
    watch(model, taken)
    model(IDS)
    replay.routes = torch.tensor([[[3, 0], [1, 2], [0, 2]]]).expand(6, 3, 2)
    model(IDS)
    assert torch.equal(taken[2][0][0], torch.tensor([0, 2]))


def test_a_router_learns_which_gates_help() -> None:
    model = qwen()
    RouteReplay(model, "model.path=m").routes = ROUTES
    model(IDS).logits.logsumexp(-1).sum().backward()
    gradient = model.model.layers[0].mlp.gate.weight.grad
    assert gradient[[0, 3]].abs().min() > 0


class Sigmoid(nn.Module):
    """A router of another kind."""

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = states.reshape(-1, 16)[:, :4]
        gates, experts = logits.sigmoid().topk(2)
        return logits, gates, experts


def test_routers_of_another_kind_are_refused_in_one_sentence() -> None:
    model = qwen()
    for layer in (0, 2):
        model.model.layers[layer].mlp.gate = Sigmoid()
    RouteReplay(model, "model.path=m")
    with pytest.raises(ConfigError, match=r"^model\.path=m: Sigmoid weights its experts by more than a softmax of its"):
        model(IDS)


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no mixture of experts behind a router of its own"):
        RouteReplay(LlamaForCausalLM(LlamaConfig(**SIZES)), "model.path=m")


def test_experts_of_passes_before_are_held_until_the_hooks_go(taken) -> None:
    model = qwen(norm_topk_prob=True)
    experts = HeldExperts(model)
    own = model(IDS).logits
    watch(model, taken)
    other = (IDS + 7) % 16
    held = [chosen[0] for chosen in experts.chosen]
    experts.held = [*held]
    model(other)
    assert all(torch.equal(taken[layer][0], held[layer]) for layer in range(2))
    assert torch.allclose(model(IDS).logits, own, atol=1e-6), "with its own experts nothing changes"
    experts.remove()
    model(other)
    assert not all(torch.equal(taken[layer][0], held[layer]) for layer in range(2))


def test_a_router_with_other_gates_is_left_as_it_is() -> None:
    model = qwen()
    for layer in (0, 2):
        model.model.layers[layer].mlp.gate = Sigmoid()
    own = model(IDS).logits
    experts = HeldExperts(model)
    model(IDS)
    assert experts.chosen == [[], []]
    experts.held = [None, None]
    assert torch.equal(model(IDS).logits, own)
