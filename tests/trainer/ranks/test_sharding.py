"""A model spread over a group of one: what several ranks compute with theirs is in `test_ranks`."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from asyncrl.errors import RankDied
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks import sharding
from asyncrl.trainer.ranks.ranks import RankGroup
from asyncrl.trainer.ranks.sharding import full_tensor, shard_like

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    group = RankGroup(HashStore(), rank=0, size=1, timeout_s=60.0)
    yield group
    group.close()


@pytest.fixture
def spread(group, model_path):
    return Policy(model_path, mesh=group.mesh)


def test_each_layer_and_the_computation_are_sharded_separately(spread):
    gathered = {name for name, module in spread._computation.named_modules() if isinstance(module, FSDPModule)}
    assert gathered == {"", "model.model.layers.0", "model.model.layers.1"}


def test_every_parameter_is_sharded_once_and_can_be_gathered(spread, model_path):
    plain, weights = Policy(model_path).parameters(), spread.parameters()

    assert all(isinstance(weight, DTensor) and weight.placements[0].is_shard(0) for weight in weights.values())
    assert weights.keys() == plain.keys(), "tied weights have one name as before"
    for name, weight in weights.items():
        assert not isinstance(full_tensor(weight), DTensor)
        assert torch.equal(full_tensor(weight), plain[name])


def test_a_sharded_model_computes_the_same_with_sharded_gradients(spread, model_path, make_trajectories):
    policies, batch = (Policy(model_path), spread), collate(make_trajectories(), device=CPU)
    scores = [policy.score(batch, temperature=0.7) for policy in policies]
    for score in scores:
        score.logprobs.square().sum().backward()
    plain, weights = (policy.parameters() for policy in policies)

    torch.testing.assert_close(scores[1].logprobs, scores[0].logprobs)
    for name, weight in weights.items():
        assert isinstance(weight, DTensor)
        assert isinstance(weight.grad, DTensor)
        assert weight.grad.placements == weight.placements
        torch.testing.assert_close(full_tensor(weight.grad), plain[name].grad)


@pytest.mark.parametrize("with_gradient", [True, False])
def test_at_most_two_layers_are_gathered_at_a_time(group, save_model, make_trajectories, with_gradient):
    """In bfloat16; embedding, last norm and head belong to the computation, and are gathered all the time."""
    policy = Policy(save_model(num_hidden_layers=6), dtype="bfloat16", mesh=group.mesh, gradient_checkpointing=True)
    layers = list(policy.model.model.layers)
    gathered: dict[int, torch.UntypedStorage] = {}
    peaks = []

    def look(layer: torch.nn.Module) -> None:
        own = [weight.untyped_storage() for weight in layer.parameters()]
        assert all(weight.dtype == torch.bfloat16 for weight in layer.parameters())
        gathered.update({storage._cdata: storage for storage in own})
        peaks.append(sum(storage.nbytes() for storage in gathered.values()) / sum(storage.nbytes() for storage in own))

    for layer in layers:
        layer.mlp.register_forward_hook(lambda *_, layer=layer: look(layer))
        layer.mlp.register_full_backward_hook(lambda *_, layer=layer: look(layer))
    with torch.set_grad_enabled(with_gradient):
        scores = policy.score(collate(make_trajectories(), device=CPU), temperature=1.0)
    if with_gradient:
        scores.logprobs.sum().backward()

    assert len(peaks) >= len(layers) * (2 if with_gradient else 1)
    assert max(peaks) <= 2
    assert not any(storage.nbytes() for storage in gathered.values())
    assert all(weight.dtype == torch.float32 and isinstance(weight, DTensor) for weight in policy.parameters().values())


def test_shard_like_follows_the_parameter_and_full_tensor_inverts_it(spread):
    weight = spread.parameters()["model.layers.1.mlp.up_proj.weight"]
    given = torch.nn.Parameter(torch.arange(24.0 * 16).reshape(24, 16))
    found = shard_like(given, weight)
    assert isinstance(found, DTensor)

    assert (found.device_mesh, found.placements) == (weight.device_mesh, weight.placements)
    assert torch.equal(full_tensor(found), given)
    assert not found.requires_grad
    with torch.no_grad():
        weight.copy_(found)
    assert torch.equal(full_tensor(weight), given)


def test_unsharded_tensors_are_only_moved_to_the_device() -> None:
    given = torch.ones(3)
    assert full_tensor(given) is given
    assert shard_like(given, torch.zeros(3)) is given
    assert shard_like(given, torch.empty(3, device="meta")).is_meta


def test_an_error_while_gathering_a_tensor_is_rank_died(spread, monkeypatch):
    def break_off(*_: object) -> torch.Tensor:
        raise RuntimeError("connection closed")

    monkeypatch.setattr(sharding, "_gather_rows", break_off)
    with pytest.raises(RankDied, match="connection closed"):
        full_tensor(spread.parameters()["model.norm.weight"])
