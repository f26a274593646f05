"""Updates of models with one parameter, their output for every token: loss and gradient are worked by hand."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.algo.logprobs import Scores
from asyncrl.config.config import Config
from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.algorithm.mini_batch import MiniBatch
from asyncrl.trainer.algorithm.recipe import VALUES, Recipe
from asyncrl.trainer.model.expert_load import ExpertLoad
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.step import Step, trajectory_info
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SingleRank
from asyncrl.trainer.updates import Updates

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
        step = Step(
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
    ids, seam = np.zeros(length, np.int32), min(length, 2)
    spans = [Span(4, 0, seam), Span(5, seam, length)]
    return TrainingTrajectory(0, np.zeros(33, np.int32), ids, np.full(length, LOGPROB, np.float32), 0.0, spans)


@pytest.mark.parametrize(("max_tokens", "passes"), [(36, [3, 1]), (39, [4])])
def test_gradients_of_all_micro_batches_make_one_step(config, max_tokens, passes):
    """d loss = -(3 · 1 - 1 · 2) / 6, and AdamW's first step goes one learning rate against it."""
    scene = Scene(config(trainer={"max_tokens_per_micro_batch": max_tokens}, sampling={"temperature": 0.7}))
    metrics = scene.updates.policy(scene.mini_batch(), 0.25, None)

    assert scene.policy.asked == passes
    assert scene.policy.settings == {"temperature": 0.7, "entropy": False}
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
