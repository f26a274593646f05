"""The networks of a trainer: which there are, where they start, what each is asked, and what is saved of them."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.tensor import DTensor

from asyncrl.config.config import Config
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES, Recipe
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.models import Models
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks.ranks import RankGroup, Ranks, SingleRank
from asyncrl.trainer.ranks.sequence import SequenceGroup
from tests.conftest import make_vision_model
from tests.trainer.model.adapter_directory import save_adapter

CPU = torch.device("cpu")
NAMES = (LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES)
ALL_THREE = {"advantage": "gae", "kl_coef": 0.1}


@pytest.fixture(scope="module")
def base_path(save_model):
    return save_model(seed=1)


def build(config: Config, model_path: Path, base_path: Path, ranks: Ranks | None = None) -> Models:
    return Models(config, Recipe(config), model_path, base_path, ranks or SingleRank())


def moved(models: Models) -> Models:
    """After an update of all that learns."""
    critic, random = models.critic, torch.Generator().manual_seed(0)
    for weight in (*models.policy.parameters().values(), *(critic.model.parameters() if critic else ())):
        weight.grad += torch.randn(weight.shape, generator=random)
    models.optimizer.step(0.0, lr=0.01)
    if critic:
        critic.step(0.0)
    return models


def test_overrides_are_in_every_network_of_the_model_and_in_its_checkpoints(config, model_path, base_path, tmp_path):
    overrides = {"max_position_embeddings": 128}
    models = build(config(model={"overrides": overrides}, algorithm=ALL_THREE), model_path, base_path)
    assert models.reference is not None
    assert models.critic is not None
    for network in (models.policy, models.reference, models.critic):
        assert network.model.config.max_position_embeddings == 128
    models.policy.configs[0].save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == 128


def test_overrides_are_not_those_of_a_critic_with_a_path_of_its_own(config, model_path, base_path):
    settings = {"model": {"overrides": {"max_position_embeddings": 128}}, "critic": {"path": str(base_path)}}
    critic = build(config(**settings, algorithm=ALL_THREE), model_path, base_path).critic
    assert critic is not None
    assert critic.model.config.max_position_embeddings == 64


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_policy_and_reference_both_start_as_an_adapter_of_the_base(
    config, model_path, make_trajectories, tmp_path, dtype
):
    plain, lora = {"algorithm": {"kl_coef": 0.1}, "model": {"dtype": dtype}}, {"rank": 2}
    learned = moved(build(config(trainer={"lora": lora}), model_path, model_path)).policy
    resumed = build(config(**plain, trainer={"lora": lora}), model_path, model_path)
    resumed.policy.restore_adapters(dict(learned.parameters()))
    path = save_adapter(tmp_path / "adapter", learned, Lora(rank=2)).path
    models = build(config(**plain, trainer={"lora": lora | {"path": path}}), model_path, model_path)

    batch = collate(make_trajectories(), device=CPU)
    found, expected = (one.score(batch, {LOGPROBS, REFERENCE}) for one in (models, resumed))
    assert torch.equal(found[LOGPROBS], expected[LOGPROBS])
    assert torch.equal(found[REFERENCE], found[LOGPROBS])
    assert not torch.equal(expected[REFERENCE], expected[LOGPROBS])
    assert models.reference is not None
    assert not any(weight.requires_grad for weight in models.reference.parameters().values())


def test_models_that_the_algorithm_does_not_need_are_absent(config, model_path):
    plain = build(config(), model_path, Path("nowhere"))
    assert (plain.reference, plain.critic) == (None, None)
    assert plain.tensors().keys() == {"optimizer"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_policy_starts_at_the_model_and_the_reference_at_the_base(
    config, model_path, base_path, make_trajectories, dtype
):
    settings = config(algorithm={"kl_coef": 0.1}, sampling={"temperature": 0.7}, model={"dtype": dtype})
    batch = collate(make_trajectories(), device=CPU)
    found = build(settings, model_path, base_path).score(batch, {LOGPROBS, REFERENCE})

    for name, path in ((LOGPROBS, model_path), (REFERENCE, base_path)):
        expected = Policy(path, dtype=dtype).score(batch, temperature=0.7).logprobs
        torch.testing.assert_close(found[name], expected)


def test_a_critic_starts_at_the_base_unless_it_has_a_path_of_its_own(config, save_model, model_path, base_path):
    own_path = save_model(seed=2)
    for critic, path in (({}, base_path), ({"path": str(own_path)}, own_path)):
        models = build(config(algorithm={"advantage": "gae"}, critic=critic), model_path, base_path)
        assert models.critic is not None
        assert torch.equal(
            models.critic.tensors()["critic"]["model.layers.0.mlp.up_proj.weight"],
            Policy(path).parameters()["model.layers.0.mlp.up_proj.weight"],
        )


@pytest.mark.parametrize("wanted", [*((name,) for name in NAMES), NAMES], ids="+".join)
def test_only_wanted_scores_are_returned(config, model_path, make_trajectories, wanted):
    models, batch = build(config(algorithm=ALL_THREE), model_path, model_path), collate(make_trajectories(), device=CPU)
    found = models.score(batch, set(wanted))

    assert found.keys() == set(wanted)
    assert {values.shape for values in found.values()} == {batch.token_ids.shape}


class OneOfThree(SingleRank):
    sequence = SequenceGroup(3, 0)


def test_models_whose_heads_the_ranks_of_a_row_do_not_divide_are_refused(config, model_path, save_model):
    with pytest.raises(ConfigError, match=r"does not divide the 2 attention heads of model\.path="):
        build(config(), model_path, model_path, OneOfThree())
    three_heads, critic = save_model(num_attention_heads=3), {"path": str(model_path)}
    with pytest.raises(ConfigError, match=r"does not divide the 2 attention heads of critic\.path="):
        build(config(algorithm={"advantage": "gae"}, critic=critic), three_heads, three_heads, OneOfThree())


def test_the_policy_forgets_and_keeps_activations_as_the_trainer_says(config, model_path):
    """Without a gradient a step is decay alone: lr .5 times weight_decay .2 takes a tenth away."""
    models = build(config(trainer={"weight_decay": 0.2, "gradient_checkpointing": True}), model_path, model_path)
    before = {name: weight.detach().clone() for name, weight in models.policy.parameters().items()}
    models.optimizer.step(0.0, lr=0.5)
    for name, weight in models.policy.parameters().items():
        torch.testing.assert_close(weight.detach(), 0.9 * before[name])
    assert models.policy.model.is_gradient_checkpointing


@pytest.mark.parametrize(
    ("sections", "files"),
    [
        ({"trainer": {"lora": {"rank": 2}}}, {"optimizer", "adapters"}),
        ({"algorithm": {"advantage": "gae"}}, {"optimizer", "critic", "critic_optimizer"}),
    ],
    ids=["adapters", "critic"],
)
def test_a_checkpoint_holds_all_that_learns_beside_the_policy_and_gives_it_back(config, model_path, sections, files):
    models = moved(build(config(**sections), model_path, model_path))
    saved = models.tensors()
    fresh = build(config(**sections), model_path, model_path)
    fresh.restore(saved)

    assert saved.keys() == files
    for file, tensors in fresh.tensors().items():
        assert tensors.keys() == saved[file].keys()
        assert all(torch.equal(tensor, saved[file][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("sections", "match"),
    [({"trainer": {"lora": {"rank": 2}}}, "adapters"), ({"algorithm": {"advantage": "gae"}}, "critic")],
    ids=["adapters", "critic"],
)
def test_a_checkpoint_of_a_plain_policy_is_refused_by_one_that_learns_more(config, model_path, sections, match):
    plain = build(config(), model_path, model_path)
    with pytest.raises(LedgerError, match=match):
        build(config(**sections), model_path, model_path).restore(plain.tensors())


@pytest.fixture
def group():
    group = RankGroup(HashStore(), rank=0, size=1, timeout_s=60.0)
    yield group
    group.close()


def test_with_ranks_to_spread_over_every_network_is_and_learns_so(config, model_path, group):
    models = build(config(algorithm=ALL_THREE), model_path, model_path, group)
    assert models.reference is not None
    assert models.critic is not None
    held: list[Mapping[str, torch.Tensor]] = [
        models.policy.parameters(),
        models.reference.parameters(),
        models.critic.tensors()["critic"],
    ]

    assert all(isinstance(weight, DTensor) for weights in held for weight in weights.values())
    gradient = models.policy.parameters()["model.norm.weight"].grad
    assert isinstance(gradient, DTensor)


def test_a_critic_beside_a_policy_that_reads_pictures_is_refused(config, tmp_path):
    make_vision_model(tmp_path)
    with pytest.raises(ConfigError, match=r"has a critic, which reads no pictures, but model\.path=.* does; use an"):
        build(config(algorithm={"advantage": "gae"}), tmp_path, tmp_path)
