"""
Models of a trainer, and one optimizer update of them from a mini-batch.

    policy      the model in training                                always
    reference   frozen; the policy is regularised towards it         with algorithm.kl_coef
    critic      the value model                                      with algorithm.advantage = "gae"

With several ranks they are sharded, and every call here is collective.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.value import value_loss
from asyncrl.config.config import Config
from asyncrl.trainer.algorithm.mini_batch import MiniBatch, objective, trains_without_advantage
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES, Recipe
from asyncrl.trainer.algorithm.step_metrics import Comparable, StepMetrics
from asyncrl.trainer.checkpoints.snapshot import ADAPTERS, OPTIMIZER, Stored
from asyncrl.trainer.model.architecture import (
    check_critic,
    check_lengths,
    check_sequence_parallel,
    read_architecture,
)
from asyncrl.trainer.model.critic import ValueModel
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.model.vision import refuse_critic
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import Ranks, collective


class Models:
    """
    Models of one rank, loaded and sharded.

    Args:
        model_path: Initial policy.
        base_path: Reference, and initial critic unless ``critic.path`` is set.

    Raises:
        ConfigError: A model cannot be loaded, or not be trained as configured.
    """

    def __init__(self, config: Config, recipe: Recipe, model_path: Path, base_path: Path, ranks: Ranks) -> None:
        trainer, dtype = config.trainer, config.model.dtype
        critic_path = Path(config.critic.path) if config.critic.path else base_path
        has_critic = VALUES in recipe.wanted
        overrides = config.model.overrides
        for setting, path in [("model.path", model_path), ("critic.path", critic_path)][: 1 + has_critic]:
            of_model = {} if setting == "critic.path" and config.critic.path else overrides
            architecture = read_architecture(path, setting, of_model)
            check_sequence_parallel(architecture, ranks.sequence.size, f"{setting}={path}")
            check_lengths(architecture, config.longest_request, f"{setting}={path}")
            if setting == "critic.path":
                check_critic(architecture, f"{setting}={path}")
        self._ranks = ranks
        self._temperature = config.sampling.temperature
        self._has_adapters = trainer.lora.rank > 0
        place: dict[str, Any] = {"overrides": overrides, "dtype": dtype, "device": ranks.device, "mesh": ranks.mesh}
        place |= {"expert_parallel": trainer.expert_parallel}
        offload = trainer.offload
        self.num_collated = 0
        """Micro-batches packed so far."""
        self.policy = Policy(
            model_path,
            **place,
            gradient_checkpointing=trainer.gradient_checkpointing,
            freeze_vision=trainer.freeze_vision,
            lora=trainer.lora,
            offload=offload,
            replay_routes=config.rollout.replay_routes,
        )
        if has_critic:
            refuse_critic(self.policy.model, f"model.path={model_path}")
        self.reference: Policy | None = None
        if recipe.has_reference:
            reference_offload = ("parameters",) if "reference" in offload else ()
            start = trainer.lora if trainer.lora.path else None  # the policy starts with it, and so does the reference
            self.reference = Policy(base_path, **place, is_frozen=True, lora=start, offload=reference_offload)
        self.optimizer = Optimizer(
            self.policy.parameters(), trainer, weight_decay=trainer.weight_decay, grad_clip=trainer.grad_clip
        )
        self.critic = ValueModel(config, critic_path, ranks.mesh, device=ranks.device) if has_critic else None

    def collate(self, trajectories: Sequence[TrainingTrajectory]) -> MicroBatch:
        """Pack trajectories as the models read them, pictures included."""
        ranks = self._ranks
        self.num_collated += 1
        return collate(trajectories, device=ranks.device, group=ranks.sequence, processor=self.policy.processor)

    def score(self, batch: MicroBatch, wanted: Collection[str]) -> dict[str, Tensor]:
        """Score N completion tokens with policy, reference and critic: [N] for each name in ``wanted``."""
        found: dict[str, Tensor | None] = {}
        if LOGPROBS in wanted or SUM_PI_SQUARED in wanted:
            scores = self.policy.score(batch, temperature=self._temperature, sum_pi_squared=SUM_PI_SQUARED in wanted)
            found |= {LOGPROBS: scores.logprobs, SUM_PI_SQUARED: scores.sum_pi_squared}
        if self.reference is not None:
            found[REFERENCE] = self.reference.score(batch, temperature=self._temperature).logprobs
        if self.critic is not None:
            found[VALUES] = self.critic.values(batch)
        return {name: values for name, values in found.items() if name in wanted and values is not None}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of a checkpoint besides the policy's weights, by file name. Borrowed."""
        found = {OPTIMIZER: self.optimizer.state()}
        if self._has_adapters:
            found[ADAPTERS] = {name: weight.detach() for name, weight in self.policy.parameters().items()}
        return found | (self.critic.tensors() if self.critic else {})

    def memory(self) -> tuple[list[Tensor], list[Tensor]]:
        """All tensors between two steps: those with values, and gradients, which are zero. Borrowed."""
        owners = [one for one in (self.policy, self.reference, self.optimizer, self.critic) if one is not None]
        kept = [tensor for owner in owners for tensor in owner.memory()]
        return kept, self.optimizer.gradients() + (self.critic.gradients() if self.critic else [])

    def restore(self, tensors: Mapping[str, Stored]) -> None:
        """Read this rank's rows of `tensors`; raises `LedgerError` if they are not of these models."""
        if self._has_adapters:
            self.policy.restore_adapters(tensors.get(ADAPTERS, {}))
        self.optimizer.restore(tensors[OPTIMIZER])
        if self.critic:
            self.critic.restore(tensors)


# ── updates ───────────────────────────────────────────────────────────────────────────────────
# One optimizer update of the policy, and of the critic if there is one, from a mini-batch.
#
#     mini-batch ─▶ micro-batches ─▶ forward, loss, backward for each ─▶ clip, AdamW, once
#
# Gradients add up over micro-batches and over ranks. With further ranks every update is collective. Ranks that share
# a row compute the same loss, and each a part of its gradient.

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
            trajectories = mini_batch.step.select(places)
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
            batch = self._models.collate(mini_batch.step.select(places))
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
