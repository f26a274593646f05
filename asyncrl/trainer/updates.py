"""
One optimizer step on a mini-batch: of the policy, and of the critic if there is one.

    mini-batch ─▶ micro-batches ─▶ forward, loss, backward, each ─▶ clip, AdamW, once

Gradients add up over micro-batches, and over ranks when the last one is done. Both are collective, with further ranks.
"""

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.value import value_loss
from asyncrl.config.sections import Config
from asyncrl.trainer.algorithm.logprob_gap import Comparable
from asyncrl.trainer.algorithm.mini_batch import MiniBatch
from asyncrl.trainer.algorithm.objective import objective
from asyncrl.trainer.algorithm.recipe import Recipe
from asyncrl.trainer.algorithm.step_metrics import StepMetrics
from asyncrl.trainer.models import Models
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.ranks.ranks import Ranks, collective


class Updates:
    """Takes them. Of the configuration, what is said of the algorithm, the critic and micro-batches is read."""

    def __init__(self, config: Config, recipe: Recipe, models: Models, ranks: Ranks) -> None:
        self._config = config
        self._recipe = recipe
        self._models = models
        self._ranks = ranks
        self._comparable = Comparable(config)

    def policy(self, mini_batch: MiniBatch, lr: float, policy_version: int | None) -> dict[str, float]:
        """
        Update the policy, and count what happened to the tokens.

        Args:
            policy_version: What the weights were published as; None if they were not.
        """
        algorithm, device = self._config.algorithm, self._ranks.device
        taught = mini_batch.places if self._recipe.needs_all else mini_batch.taught
        tally = StepMetrics()
        for places in mini_batch.step.passes(taught, self._ranks, self._max_tokens):
            samples = mini_batch.step.of(places)
            batch = collate(samples, device=device)
            with collective():
                scores = self._models.policy.score(
                    batch, temperature=self._config.sampling.temperature, entropy=algorithm.entropy_coef > 0
                )
            compared = self._comparable.tokens(samples, policy_version) if samples else None
            constants = mini_batch.constants(places, compared, device=device)
            parts = objective(self._recipe, algorithm, scores, constants)
            self._backward(parts.loss)
            tally.add(batch, scores.logprobs, constants, parts)
        metrics = tally.metrics(self._ranks)
        return metrics | self._models.descent.step(metrics["loss"], lr=lr)

    def critic(self, mini_batch: MiniBatch, lr_share: float) -> dict[str, float]:
        """
        Update the critic; nothing if there is none.

        Args:
            lr_share: Of ``critic.lr``.
        """
        if (critic := self._models.critic) is None:
            return {}
        total = clipped = 0.0
        for places in mini_batch.step.passes(mini_batch.places, self._ranks, self._max_tokens):
            batch = collate(mini_batch.step.of(places), device=self._ranks.device)
            with collective():
                values = critic.values(batch)
            known = mini_batch.values(places, device=self._ranks.device)
            part = value_loss(values, known.old, known.targets, value_clip=self._config.critic.value_clip)
            loss = part.losses[known.keep].sum() / mini_batch.num_tokens
            self._backward(loss)
            total += float(loss.detach())
            clipped += float(part.is_clipped[known.keep].sum()) / mini_batch.num_tokens
        said = b"".join(self._ranks.gather(np.array([total, clipped]).tobytes()))
        total, clipped = np.frombuffer(said, np.float64).reshape(-1, 2).sum(0).tolist()
        return {
            "critic_loss": total,
            "critic_clip_fraction": clipped,
            **critic.step(total, lr_share=lr_share),
        }

    @property
    def _max_tokens(self) -> int:
        return self._config.trainer.max_tokens_per_micro_batch

    def _backward(self, loss: Tensor) -> None:
        with collective():
            # Sharded gradients are averaged over ranks, but the weights of tokens make them a sum already.
            torch.autograd.backward(loss * self._ranks.size)
