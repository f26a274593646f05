"""
One training step: scored trajectories in, a better policy and its metrics out.

    step ─▶ look ─▶ estimate ─▶ each epoch, each mini-batch:  micro-batches ─▶ forward, loss, backward ─▶ clip ─▶ AdamW
            log-probs,  advantages,         └────── weights of tokens, from the whole mini-batch ──────┘
            if wanted   correction

How a step is cut into micro-batches and spread over ranks changes memory and time, never the loss: each token's weight
in it comes from totals over the whole mini-batch. Everything here is synchronous; the trainer's actor runs it in a
thread.

Log-probs under the policy being trained are always computed again; those under the policy that sampled are the recorded
ones. Those of the policy the step begins with, of the reference and of the critic are computed if the algorithm wants
them: they cost a forward pass each.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.kl_controller import KlController
from asyncrl.config.sections import Config
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates, estimate
from asyncrl.trainer.algorithm.mini_batch import MiniBatch
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, VALUES, Recipe
from asyncrl.trainer.algorithm.selecting import selected
from asyncrl.trainer.algorithm.step_metrics import merged
from asyncrl.trainer.checkpoints.snapshot import Snapshot, host_copy
from asyncrl.trainer.model.learning_rate import learning_rate
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.models import Models
from asyncrl.trainer.packing.assignment import owners
from asyncrl.trainer.packing.batch import TrainingTrajectory, collate
from asyncrl.trainer.packing.step import NOBODY, Step, TrajectoryInfo, whole
from asyncrl.trainer.ranks.per_token import Column, shared
from asyncrl.trainer.ranks.ranks import Alone, Ranks, collective
from asyncrl.trainer.updates import Updates
from asyncrl.weights.contents.layout import TensorSpec


class Learner:
    """
    Owns the models and their optimizers.

    Installs nothing global: the number of torch threads and the random seed are the process's affair.
    """

    def __init__(
        self, config: Config, model_path: Path, *, reference_path: Path | None = None, ranks: Ranks | None = None
    ) -> None:
        """
        Args:
            config: What it says of data, rollouts and the like is not read.
            model_path: Where the policy starts: the base model, or a checkpoint.
            reference_path: The policy ``algorithm.kl_coef`` holds it to, and where a critic starts; None takes
                ``model_path``.
            ranks: Who trains together; None is this process alone. With others, every call here is collective.

        Raises:
            ConfigError: A model cannot be loaded, or not be trained as configured.
        """
        self._config = config
        self._ranks = ranks or Alone()
        self._recipe = Recipe(config)
        self._num_steps = 0
        self._models = Models(config, self._recipe, model_path, reference_path or model_path, self._ranks)
        self._policy = self._models.policy
        self._updates = Updates(config, self._recipe, self._models, self._ranks)
        self._kl_controller = KlController(
            config.algorithm.kl_coef, target=config.algorithm.kl_target, horizon=config.algorithm.kl_horizon
        )

    @property
    def num_steps(self) -> int:
        """Steps taken, skipped ones included. The learning rate follows it."""
        return self._num_steps

    @property
    def policy(self) -> Policy:
        """The model in training."""
        return self._policy

    def owners(self, described: Sequence[TrajectoryInfo]) -> list[int]:
        """[S] the rank that is to train each trajectory; `NOBODY` for those whose tokens no rank needs."""
        owner = [NOBODY] * len(described)
        needed = set(range(len(described)))
        if not self._recipe.wanted and not self._recipe.needs_all:
            advantages = self._recipe.advantages([one.outcome for one in described])
            needed = {place for place in needed if advantages[place].any()}
        for places in Step(described, {}, owner).mini_batches(self._config.trainer.mini_batches):
            trained = [place for place in places if place in needed]
            shares = owners([described[place].size for place in trained], self._ranks.size)
            for place, rank in zip(trained, shares, strict=True):
                owner[place] = rank
        return owner

    def train(self, step: Step | Sequence[TrainingTrajectory], policy_version: int | None = None) -> dict[str, float]:
        """
        Take one step.

        Args:
            step: Its trajectories; a list of samples is a step all of which is here.
            policy_version: What the weights, as they are before the step, were published as; None if they were not.

        Returns:
            Metrics, the same on all ranks. ``skipped`` counts updates whose loss or gradient was not finite: the
            weights were left as they were. Those of the log-prob gap are there if ``policy_version`` wrote a token.

        Raises:
            AsyncrlError: There are no samples, or a group is scattered.
            ConfigError: A trajectory is longer than a micro-batch may be.
        """
        if not isinstance(step, Step):
            step = whole(step)
        columns = self._look(step)
        estimates = estimate(self._recipe, step.outcomes, columns, kl_coef=self._kl_controller.coef)
        lr = learning_rate(self._num_steps, self._config.trainer, self._config.run.steps)
        updates: list[dict[str, float]] = []
        for _ in range(self._config.trainer.epochs):
            for places in step.mini_batches(self._config.trainer.mini_batches):
                mini_batch = self._mini_batch(step, places, columns, estimates)
                # After an update the weights are no longer those that were published.
                update = self._updates.policy(mini_batch, lr, None if updates else policy_version)
                updates.append(update | self._updates.critic(mini_batch, lr_share=lr / self._config.trainer.lr))
        self._num_steps += 1
        if (kl := estimates.metrics.get("kl_in_reward")) is not None:
            self._kl_controller.update(kl, len(step.described))
        return merged(updates) | dict(estimates.metrics) | _described(step, estimates) | {"lr": lr}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights to publish, tied ones once, by Hugging Face name. Borrowed until the next `train`. Collective."""
        return self._policy.named_weights()

    def gather_weights(self) -> None:
        """What a rank does while the first one reads its `named_weights`. Collective."""
        for _ in self.named_weights():
            pass

    def specs(self) -> list[TensorSpec]:
        """What `named_weights` yields, in its order."""
        return self._policy.specs()

    def snapshot(self) -> Snapshot:
        """All that a checkpoint holds of it, copied. Collective; only the first rank's has tensors in it."""
        keeps = self._ranks.rank == 0
        return Snapshot(
            model=self._policy.model,
            weights=host_copy(self._policy.state_dict(), keeps=keeps),
            tensors={name: host_copy(part, keeps=keeps) for name, part in self._models.tensors().items()},
            state={"kl_coef": self._kl_controller.coef},
            random_state=torch.get_rng_state().numpy().tobytes(),
        )

    def resume(
        self, num_steps: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, float] | None = None
    ) -> None:
        """
        Go on as if this learner had taken ``num_steps`` steps.

        Args:
            tensors: `Snapshot.tensors`, on every rank.
            state: `Snapshot.state`.

        Raises:
            LedgerError: They are not of these models.
        """
        self._models.restore(tensors)
        self._kl_controller.coef = (state or {}).get("kl_coef", self._kl_controller.coef)
        self._num_steps = num_steps

    # ── before the first gradient ───────────────────────────────────────────────────────────

    @torch.no_grad()
    def _look(self, step: Step) -> dict[str, Column]:
        """What the algorithm wants to know of every token of the step, under the policies it begins with."""
        if not (wanted := self._recipe.wanted):
            return {}
        own: dict[str, dict[int, NDArray[np.float32]]] = {name: {} for name in wanted}
        own[BEHAVIOR] = {place: sample.behavior_logprobs for place, sample in step.trajectories.items()}
        everything, max_tokens = range(len(step.described)), self._config.trainer.max_tokens_per_micro_batch
        for places in step.passes(everything, self._ranks, max_tokens):
            batch = collate(step.of(places), device=self._ranks.device)
            with collective():
                found = self._models.look(batch, wanted)
            for name, values in found.items():
                parts = torch.split(values.float().cpu(), list(batch.lengths))
                own[name] |= {place: part.numpy() for place, part in zip(places, parts, strict=True)}
        lengths = [outcome.length for outcome in step.outcomes]
        return shared(own, lengths=lengths, owner=step.owner, ranks=self._ranks)

    def _mini_batch(
        self, step: Step, places: Sequence[int], columns: Mapping[str, Column], estimates: Estimates
    ) -> MiniBatch:
        recipe = self._recipe
        return MiniBatch(
            step=step,
            places=places,
            estimates=estimates,
            weigh=recipe.weigh([estimates.length(place) for place in places]),
            old_logprobs=columns[LOGPROBS] if recipe.is_decoupled else None,
            ref_logprobs=columns[REFERENCE] if recipe.has_reference and not recipe.penalises_reward else None,
            old_values=columns.get(VALUES),
            picked=selected(recipe, step, places, columns, estimates, seed=self._num_steps),
        )


def _described(step: Step, estimates: Estimates) -> dict[str, float]:
    """Metrics of the trajectories, whether they were trained on or not."""
    rewards = [outcome.reward for outcome in step.outcomes]
    advantages = [float(one.mean()) if len(one) else 0.0 for one in estimates.advantages]
    return {
        "reward_mean": fmean(rewards),
        "reward_std": pstdev(rewards),
        "advantage_mean": fmean(advantages),
        "advantage_std": pstdev(advantages),
        "zero_advantage_fraction": fmean(not one.any() for one in estimates.advantages),
        "num_tokens": float(sum(outcome.length for outcome in step.outcomes)),
        "num_trajectories": float(len(rewards)),
    }
