"""The networks of a trainer: which there are, where they start, what each is asked, and what is saved of them."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.tensor import DTensor

from asyncrl.algo.logprobs import MEASURED_EVERY, Scores
from asyncrl.config.config import Config
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.algorithm.mini_batch import MiniBatch
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES, Recipe
from asyncrl.trainer.learner import Updates
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.model.route_replay import ExpertLoad
from asyncrl.trainer.models import Models
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, trajectory_info
from asyncrl.trainer.ranks.ranks import RankGroup, Ranks, SequenceGroup, SingleRank
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
    assert resumed.policy.adapters is not None
    resumed.policy.adapters.restore(dict(learned.parameters()))
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


# ── test updates ──────────────────────────────────────────────────────────────────────────────
# Updates of models with one parameter, their output for every token: loss and gradient are worked by hand.

LENGTHS = (3, 2, 1)
ADVANTAGES = ([1.0, 1.0, 1.0], [0.0, 0.0], [-2.0])
GAE, SMALL = {"advantage": "gae"}, {"max_tokens_per_micro_batch": 36}
LOGPROB = -1.0
"""Log-prob of every token under policy and sampler: ratios are one."""


class Network:
    """Model whose only parameter is its output. Records the number of tokens of each call."""

    def __init__(self, answer: float, config: Config) -> None:
        self.answer = nn.Parameter(torch.tensor([answer]))
        self.optimizer = Optimizer({"answer": self.answer}, config.trainer, weight_decay=0.0, grad_clip=0.0)
        self.expert_load = ExpertLoad(nn.Module())
        self.asked: list[int] = []
        self.settings: dict[str, Any] = {}

    def score(self, batch: MicroBatch, **settings: Any) -> Scores:
        self.settings = settings
        logprobs = self.values(batch)
        return Scores(logprobs, entropy=2 * logprobs if settings["entropy"] else None)

    def values(self, batch: MicroBatch) -> Tensor:
        self.asked.append(len(batch.token_ids))
        return self.answer.expand(len(batch.token_ids))

    def step(self, loss: float, *, lr_scale: float) -> dict[str, float]:
        metrics = self.optimizer.step(loss, lr=lr_scale)
        return {f"critic_{name}": value for name, value in metrics.items()}


class TwoAlike(SingleRank):
    """The first of two ranks, of which the other sends the same data."""

    size = 2

    def all_gather(self, said: bytes) -> list[bytes]:
        return [said, said]


class Scene:
    """`Updates`, and a mini-batch of three trajectories of one group."""

    def __init__(self, config: Config, ranks: SingleRank | None = None) -> None:
        recipe = Recipe(config)
        self.policy = Network(LOGPROB, config)
        self.critic = Network(0.0, config) if VALUES in recipe.wanted else None
        ranks = ranks or SingleRank()
        models: Any = SimpleNamespace(
            policy=self.policy,
            optimizer=self.policy.optimizer,
            critic=self.critic,
            collate=partial(collate, device=ranks.device, group=ranks.sequence),
        )
        self.updates = Updates(config, recipe, models, ranks)

    def mini_batch(
        self, *, owner: tuple[int, ...] = (0, 0, 0), keep: list[list[bool]] | None = None, **known: Any
    ) -> MiniBatch:
        trajectories = [trajectory(length) for length in LENGTHS]
        step = TrainingStep(
            [trajectory_info(one) for one in trajectories],
            {i: trajectories[i] for i in range(3) if owner[i] == 0},
            owner,
        )
        estimates = Estimates(
            [np.array(row) for row in ADVANTAGES],
            value_targets=[np.ones(length) for length in LENGTHS],
            keep=None if keep is None else [np.array(row) for row in keep],
        )
        nothing = dict.fromkeys(("old_logprobs", "ref_logprobs", "selected"))
        settings = nothing | {"old_values": [np.zeros(length) for length in LENGTHS]} | known
        weights = dict.fromkeys(range(3), 1 / 6)
        return MiniBatch(step=step, places=[0, 1, 2], estimates=estimates, token_weights=weights, **settings)


def trajectory(length: int) -> TrainingTrajectory:
    """Version 4 wrote the first two tokens and version 5 the third. The longest fills a micro-batch of 36."""
    ids, boundary = np.zeros(length, np.int32), min(length, 2)
    spans = [Span(4, 0, boundary), Span(5, boundary, length)]
    return TrainingTrajectory(0, np.zeros(33, np.int32), ids, np.full(length, LOGPROB, np.float32), 0.0, spans)


@pytest.mark.parametrize(("max_tokens", "passes"), [(36, [3, 1]), (39, [4])])
def test_gradients_of_all_micro_batches_make_one_step(config, max_tokens, passes):
    """d loss = -(3 · 1 - 1 · 2) / 6, and AdamW's first step goes one learning rate against it."""
    scene = Scene(config(trainer={"max_tokens_per_micro_batch": max_tokens}, sampling={"temperature": 0.7}))
    metrics = scene.updates.policy(scene.mini_batch(), 0.25, None)

    assert scene.policy.asked == passes
    assert scene.policy.settings == {"temperature": 0.7, "entropy": MEASURED_EVERY}
    assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((-1 / 6, 1 / 6))
    assert (metrics["micro_batches"], metrics["trained_tokens"], metrics["skipped"]) == (len(passes), 4, 0)
    assert scene.policy.answer.item() == pytest.approx(LOGPROB + 0.25)


def test_trajectories_without_advantage_are_processed_only_for_entropy(config):
    """Entropy is twice the answer, and half of it is taken from the loss: that is 1 more, and 1 more of a slope."""
    scene = Scene(config(algorithm={"entropy_coef": 0.5}))
    metrics = scene.updates.policy(scene.mini_batch(), 0.25, None)

    assert scene.policy.asked == [6]
    assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((-1 / 6 + 1.0, 1 / 6 + 1.0))


def test_tokens_are_compared_with_the_sampler_if_the_weights_in_training_wrote_them(config):
    """Four tokens have an advantage: version 4 wrote three, version 5 one and version 6 none."""
    scene = Scene(config())
    mini_batch = scene.mini_batch()
    gaps = [scene.updates.policy(mini_batch, 0.0, version).get("logprob_gap_tokens") for version in (4, 5, 6, None)]
    assert gaps == [3, 1, None, None]


def test_a_rank_without_trajectories_goes_through_the_model_as_often_as_the_other(config):
    scene = Scene(config(algorithm=GAE, trainer=SMALL), TwoAlike())
    mini_batch = scene.mini_batch(owner=(1, 1, 1))
    metrics = scene.updates.policy(mini_batch, 0.25, 5) | scene.updates.critic(mini_batch, 1.0)

    assert scene.policy.asked == [0, 0]
    assert scene.critic is not None
    assert scene.critic.asked == [0, 0]
    assert [metrics[name] for name in ("loss", "grad_norm", "critic_loss", "critic_grad_norm")] == [0.0] * 4


def test_gradients_that_ranks_will_average_are_multiplied_by_their_number(config):
    """This one has the trajectory of three tokens, and the other says it has such a one too."""
    scene = Scene(config(algorithm=GAE), TwoAlike())
    mini_batch = scene.mini_batch(owner=(0, 1, 1))
    metrics = scene.updates.policy(mini_batch, 0.25, None) | scene.updates.critic(mini_batch, 1.0)

    assert (metrics["loss"], metrics["grad_norm"], metrics["trained_tokens"]) == pytest.approx(
        (2 * -3 / 6, 2 * 3 / 6, 6)
    )
    # Half a squared error of 1, and a slope of -1, for each token.
    assert (metrics["critic_loss"], metrics["critic_grad_norm"]) == pytest.approx((2 * 0.5 * 3 / 6, 2 * 3 / 6))


def test_a_critic_learns_from_every_token_that_counts_whether_it_has_an_advantage_or_not(config):
    """Four are kept. All had a value of 0 before, should have 1, and have 0: half a squared error of 1 for each."""
    scene = Scene(config(algorithm=GAE, trainer=SMALL))
    keep = [[True, True, False], [True, True], [False]]
    metrics = scene.updates.critic(scene.mini_batch(keep=keep), lr_scale=0.25)

    assert scene.critic is not None
    assert scene.critic.asked == [3, 3]
    assert (metrics["critic_loss"], metrics["critic_grad_norm"]) == pytest.approx((0.5, 1.0))
    assert metrics["critic_clip_fraction"] == 0.0
    assert scene.critic.answer.item() == pytest.approx(0.25)


def test_clipped_values_are_held_and_counted(config):
    """
    It says 0, should say 1, and may move by .2. Where it said .8 it has moved away, and is pulled back. Where it said
    -.9 it may come to -.7 for now: that error, 1.7, is the larger one, and has no gradient. One such token is rejected.
    """
    scene = Scene(config(algorithm=GAE, critic={"value_clip": 0.2}))
    old_values = [np.array([0.8, -0.9, -0.9]), np.zeros(2), np.zeros(1)]
    mini_batch = scene.mini_batch(old_values=old_values, keep=[[True, True, False], [True, True], [True]])
    metrics = scene.updates.critic(mini_batch, lr_scale=1.0)

    assert metrics["critic_clip_fraction"] == pytest.approx(1 / 5)
    assert metrics["critic_loss"] == pytest.approx(0.5 * (4 * 1.0 + 1.7**2) / 5)
    assert metrics["critic_grad_norm"] == pytest.approx(4 / 5)


def test_without_a_critic_its_update_does_nothing(config):
    scene = Scene(config())
    assert scene.updates.critic(scene.mini_batch(old_values=None), 1.0) == {}
