"""
One optimizer update of the policy, and of the critic if there is one, from a mini-batch.

    mini-batch ─▶ micro-batches ─▶ forward, loss, backward for each ─▶ clip, AdamW, once

Gradients add up over micro-batches and over ranks. With further ranks every update is collective. Ranks that share a
row compute the same loss, and each a part of its gradient.
"""

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.value import value_loss
from asyncrl.config.config import Config
from asyncrl.trainer.algorithm.logprob_gap import Comparable
from asyncrl.trainer.algorithm.mini_batch import MiniBatch
from asyncrl.trainer.algorithm.objective import objective, trains_without_advantage
from asyncrl.trainer.algorithm.recipe import Recipe
from asyncrl.trainer.algorithm.step_metrics import StepMetrics
from asyncrl.trainer.models import Models
from asyncrl.trainer.ranks.ranks import Ranks, collective

EMPTY = {"grad_norm": 0.0, "skipped": 1.0, "skipped_empty": 1.0}
"""Metrics of an update that keeps no token."""


class Updates:
    """Updates of the models by the configured algorithm."""

    def __init__(self, config: Config, recipe: Recipe, models: Models, ranks: Ranks) -> None:
        self._config = config
        self._recipe = recipe
        self._models = models
        self._ranks = ranks
        self._comparable = Comparable(config)
        self.needs_all = trains_without_advantage(recipe, config.algorithm)
        """True if trajectories with an advantage of zero have a gradient too."""

    def policy(self, mini_batch: MiniBatch, lr: float, policy_version: int | None) -> dict[str, float]:
        """
        Update the policy, and return the metrics of the update. One that keeps no token is skipped: moments and weight
        decay would move the weights without it.

        ``policy_version`` is the version of the weights before it; None if they were not published.
        """
        algorithm, device = self._config.algorithm, self._ranks.device
        trained = mini_batch.places if self.needs_all else mini_batch.with_advantage
        step_metrics, expert_load = StepMetrics(), self._models.policy.expert_load
        for places in mini_batch.step.micro_batches(trained, self._ranks, self._max_tokens):
            trajectories = mini_batch.step.at(places)
            batch = self._models.collate(trajectories)
            with collective(), expert_load.counting(batch.positions):
                scores = self._models.policy.score(
                    batch, temperature=self._config.sampling.temperature, entropy=algorithm.entropy_coef > 0
                )
            is_compared = self._comparable.tokens(trajectories, policy_version) if trajectories else None
            inputs = mini_batch.loss_inputs(places, is_compared, device=device)
            result = objective(self._recipe, algorithm, scores, inputs)
            self._backward(result.loss)
            if self._ranks.sequence.is_first:
                step_metrics.add(batch, scores.logprobs, inputs, result)
        metrics = step_metrics.metrics(self._ranks) | expert_load.metrics(self._ranks)
        if not mini_batch.num_kept or (trained and not metrics["kept_tokens"]):
            return metrics | EMPTY
        return metrics | self._models.optimizer.step(metrics["loss"], lr=lr)

    def critic(self, mini_batch: MiniBatch, lr_scale: float) -> dict[str, float]:
        """Update the critic, if there is one, and return the metrics; ``lr_scale`` is a factor of ``critic.lr``."""
        if (critic := self._models.critic) is None or not mini_batch.num_kept:
            return {}
        total = clipped = 0.0
        for places in mini_batch.step.micro_batches(mini_batch.places, self._ranks, self._max_tokens):
            batch = self._models.collate(mini_batch.step.at(places))
            with collective():
                values = critic.values(batch)
            inputs = mini_batch.value_inputs(places, device=self._ranks.device)
            part = value_loss(values, inputs.old_values, inputs.targets, value_clip=self._config.critic.value_clip)
            loss = part.losses[inputs.keep].sum() / mini_batch.num_kept
            self._backward(loss)
            if self._ranks.sequence.is_first:
                total += float(loss.detach())
                clipped += float(part.is_clipped[inputs.keep].sum()) / mini_batch.num_kept
        sums = b"".join(self._ranks.all_gather(np.array([total, clipped]).tobytes()))
        total, clipped = np.frombuffer(sums, np.float64).reshape(-1, 2).sum(0).tolist()
        return {"critic_loss": total, "critic_clip_fraction": clipped, **critic.step(total, lr_scale=lr_scale)}

    @property
    def _max_tokens(self) -> int:
        return self._config.trainer.max_tokens_per_micro_batch

    def _backward(self, loss: Tensor) -> None:
        with collective():
            # FSDP averages gradients over ranks, but the token weights make their sum the gradient of the step.
            torch.autograd.backward(loss * self._ranks.size)
