from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.trainer.model.expert_load import ExpertLoad, load_metrics
from asyncrl.trainer.model.policy import Policy
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
