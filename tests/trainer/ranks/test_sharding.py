"""A model spread over a group of one: what several ranks compute with theirs is in `test_ranks`."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from asyncrl.errors import RankDied
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks.ranks import Group
from asyncrl.trainer.ranks.sharding import shard, share, whole

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    group = Group(tmp_path_factory.mktemp("ranks") / "store", rank=0, size=1, timeout_s=60.0)
    yield group
    group.close()


@pytest.fixture
def spread(group, model_path) -> Policy:
    policy = Policy(model_path)
    shard(policy.model, policy._scoring, group.mesh)
    return policy


def test_each_layer_and_what_computes_are_gathered_by_themselves(spread) -> None:
    gathered = {name for name, module in spread._scoring.named_modules() if isinstance(module, FSDPModule)}
    assert gathered == {"", "body.layers.0", "body.layers.1"}


def test_every_parameter_is_spread_once_and_whole_again_when_it_is_asked_for(spread, model_path) -> None:
    plain, weights = Policy(model_path).parameters(), spread.parameters()

    assert all(isinstance(weight, DTensor) and weight.placements[0].is_shard(0) for weight in weights.values())
    assert weights.keys() == plain.keys(), "tied weights have one name as before"
    for name, weight in weights.items():
        assert not isinstance(whole(weight), DTensor)
        assert torch.equal(whole(weight), plain[name])


def test_it_computes_what_it_computed_before_and_its_gradients_are_spread_like_it(
    spread, model_path, make_samples
) -> None:
    policies, batch = (Policy(model_path), spread), collate(make_samples(), device=CPU)
    scores = [policy.score(batch, temperature=0.7) for policy in policies]
    for score in scores:
        score.logprobs.square().sum().backward()
    plain, weights = (policy.parameters() for policy in policies)

    torch.testing.assert_close(scores[1].logprobs, scores[0].logprobs)
    for name, weight in weights.items():
        assert weight.grad.placements == weight.placements
        torch.testing.assert_close(whole(weight.grad), plain[name].grad)


def test_a_share_is_spread_as_its_model_is_and_the_whole_of_it_is_what_was_given(spread) -> None:
    weight = spread.parameters()["model.layers.1.mlp.up_proj.weight"]
    given = torch.nn.Parameter(torch.arange(24.0 * 16).reshape(24, 16))
    found = share(given, weight)

    assert (found.device_mesh, found.placements) == (weight.device_mesh, weight.placements)
    assert torch.equal(whole(found), given)
    assert not found.requires_grad
    with torch.no_grad():
        weight.copy_(found)
    assert torch.equal(whole(weight), given)


def test_what_is_not_spread_is_only_moved_to_where_its_model_is() -> None:
    given = torch.ones(3)
    assert whole(given) is given
    assert share(given, torch.zeros(3)) is given
    assert share(given, torch.empty(3, device="meta")).is_meta


def test_a_peer_that_is_gone_while_a_tensor_is_gathered_is_named_as_such(spread, monkeypatch) -> None:
    def break_off(_: DTensor) -> torch.Tensor:
        raise RuntimeError("connection closed")

    monkeypatch.setattr(DTensor, "full_tensor", break_off)
    with pytest.raises(RankDied, match="connection closed"):
        whole(spread.parameters()["model.norm.weight"])
