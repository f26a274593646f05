"""
One training step: scored trajectories in, an updated policy and metrics out.

    step ─▶ score ─▶ estimate ─▶ each epoch, each mini-batch:  micro-batches ─▶ forward, loss, backward ─▶ clip ─▶ AdamW
            if needed  advantages,       └────── token weights, from the whole mini-batch ──────┘
                       correction

Cutting a step into micro-batches and assigning them to ranks changes memory and time, never the loss: each token's
weight comes from totals over the whole mini-batch. All methods block; the trainer's actor calls them in a thread.

Log-probs under the policy in training are always recomputed; those under the policy that sampled are the recorded ones.
Log-probs before the step and under the reference, and values, cost a forward pass each: computed only if needed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.kl import KlController
from asyncrl.algo.value import value_loss
from asyncrl.config.config import Config
from asyncrl.trainer.algorithm.estimates import BEHAVIOR, Estimates, estimate, select_tokens, token_rewards
from asyncrl.trainer.algorithm.mini_batch import MiniBatch, TrainedPart, objective, trains_without_advantage
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, TOKEN_REWARDS, VALUES, Recipe
from asyncrl.trainer.algorithm.step_metrics import Comparable, StepMetrics, merged
from asyncrl.trainer.checkpoints.snapshot import (
    MODEL,
    TENSORS,
    CheckpointPart,
    OwnPart,
    Snapshot,
    Stored,
    divide,
    emptied,
    gathered,
)
from asyncrl.trainer.model.optimizer import learning_rate
from asyncrl.trainer.models import Models
from asyncrl.trainer.packing.step import (
    UNASSIGNED,
    PerToken,
    TrainingStep,
    TrainingTrajectory,
    TrajectoryInfo,
    all_gather_per_token,
    assign_ranks,
    local_step,
)
from asyncrl.trainer.ranks.ranks import Ranks, SingleRank, collective
from asyncrl.trainer.ranks.sharding import local_rows
from asyncrl.weights.offload import Offloader

# ── anchor ────────────────────────────────────────────────────────────────────────────────────
# Weights of the last publish, against which decoupled correction takes ratios for all steps until the next one.
#
#   publish ─ keep ─▶ step 1 ─▶ step 2: applied ┐ scores by the kept weights ┘ ─▶ update of its own weights ─▶ publish
#
# The kept weights are this rank's rows of the trained parameters (of adapters only, if those are trained), in float32
# on the host. While they are applied, they are swapped with the weights in training.


class Anchor:
    """Copy of ``parameters`` at the last publish. The parameters themselves are borrowed."""

    def __init__(self, parameters: Mapping[str, Tensor], steps_per_publish: int) -> None:
        self._parameters = parameters
        self._steps_per_publish = steps_per_publish
        self._kept: list[Tensor] | None = None
        self._is_current = False
        """True if the kept weights equal those in training."""

    @torch.no_grad()
    def begin(self, step: int) -> None:
        """Begin a step. The first step after a publish, or of this process, copies the weights."""
        self._is_current = step % self._steps_per_publish == 0 or self._kept is None
        if self._is_current:
            self._kept = [tensor.to("cpu", copy=True) for tensor in self._own()]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the parameters have the kept values."""
        if self._is_current:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _own(self) -> list[Tensor]:
        """This rank's rows, looked up at each call, because FSDP may move them at its first use."""
        return [local_rows(parameter.detach())[0] for parameter in self._parameters.values()]

    @torch.no_grad()
    def _swap(self) -> None:
        for own, kept in zip(self._own(), self._kept or (), strict=True):
            trained = own.to("cpu", copy=True)
            own.copy_(kept)
            kept.copy_(trained)


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
        self._max_tokens = config.trainer.max_tokens_per_micro_batch
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
            old_values, targets, keep = mini_batch.value_inputs(places, device=self._ranks.device)
            losses, is_clipped = value_loss(values, old_values, targets, value_clip=self._config.critic.value_clip)
            loss = losses[keep].sum() / mini_batch.num_kept
            self._backward(loss)
            if self._ranks.sequence.is_first:
                total += float(loss.detach())
                clipped += float(is_clipped[keep].sum()) / mini_batch.num_kept
        sums = b"".join(self._ranks.all_gather(np.array([total, clipped]).tobytes()))
        total, clipped = np.frombuffer(sums, np.float64).reshape(-1, 2).sum(0).tolist()
        return {"critic_loss": total, "critic_clip_fraction": clipped, **critic.step(total, lr_scale=lr_scale)}

    def _backward(self, loss: Tensor) -> None:
        with collective():
            # FSDP averages gradients over ranks, but the token weights make their sum the gradient of the step.
            torch.autograd.backward(loss * self._ranks.size)


# ── learner ───────────────────────────────────────────────────────────────────────────────────


class Learner:
    """
    Owns the models and their optimizers.

    Sets no process-wide state: the number of torch threads and the random seed are the caller's to set.

    Args:
        model_path: Initial policy: the base model, or a checkpoint.
        reference_path: Reference policy of ``algorithm.kl_coef``, and initial critic; None takes ``model_path``.
        ranks: Processes that train together; None is this process alone. With several, every call is collective.

    Raises:
        ConfigError: A model cannot be loaded, or not be trained as configured.
    """

    def __init__(
        self, config: Config, model_path: Path, *, reference_path: Path | None = None, ranks: Ranks | None = None
    ) -> None:
        self._config = config
        self._ranks = ranks or SingleRank()
        self._recipe = Recipe(config)
        self.num_steps = 0
        """Steps taken, skipped ones included; the learning rate depends on it."""
        self.lr = config.trainer.lr
        """Learning rate after the warm-up. It may be set between two steps, on all ranks."""
        self._models = Models(config, self._recipe, model_path, reference_path or model_path, self._ranks)
        self.policy = self._models.policy
        self.token_ids = self.policy.token_ids
        self.route_shape = self.policy.route_shape
        """Shape of the routes that trajectories must have; None without ``rollout.replay_routes``."""
        self._anchor: Anchor | None = None
        if self._recipe.keeps_anchor:
            self._anchor = Anchor(self.policy.parameters(), config.schedule.steps_per_publish)
        self._offloader = Offloader()
        self._trained_part = TrainedPart(config)
        self._updates = Updates(config, self._recipe, self._models, self._ranks)
        self._kl_controller = KlController(
            self._recipe.reward_kl_coef, target=config.algorithm.kl_target, horizon=config.algorithm.kl_horizon
        )

    @property
    def num_computed(self) -> int:
        """Micro-batches begun so far: it grows while a step trains."""
        return self._models.num_collated

    def assign_ranks(self, infos: Sequence[TrajectoryInfo]) -> list[int]:
        """[S] rank that trains each trajectory (see `assign_ranks`); `UNASSIGNED` if its gradient must be zero."""
        owners = [UNASSIGNED] * len(infos)
        needed = set(range(len(infos)))
        is_payload_read = self._recipe.reads_token_rewards or not self._trained_part.is_whole
        if not (self._recipe.wanted or self._updates.needs_all or is_payload_read):
            advantages = self._recipe.advantages([info.outcome for info in infos])
            needed = {place for place in needed if advantages[place].any()}
        for places in TrainingStep(infos, {}, owners).mini_batches(self._config.trainer.mini_batches):
            trained = [place for place in places if place in needed]
            sizes = [infos[place].size for place in trained]
            assigned = assign_ranks(sizes, self._ranks.size, self._ranks.sequence.size)
            for place, rank in zip(trained, assigned, strict=True):
                owners[place] = rank
        return owners

    def train(
        self, step: TrainingStep | Sequence[TrainingTrajectory], policy_version: int | None = None
    ) -> dict[str, float]:
        """
        Train one step.

        Args:
            step: Step with this rank's trajectories; a list is a step that this process trains alone.
            policy_version: Version of the weights before the step; None if they were not published.

        Returns:
            Metrics, the same on all ranks. ``num_tokens`` are those that the policy wrote, trained or not. ``skipped``
            counts updates that leave the weights unchanged, because no token is kept or the loss or gradient is not
            finite, and is 1 for a step without trajectories. Metrics of the log-prob gap are present if
            ``policy_version`` wrote a token.

        Raises:
            AsyncrlError: There are no trajectories, or those of a group are not adjacent.
            ConfigError: A trajectory is longer than a micro-batch may be.
        """
        if not isinstance(step, TrainingStep):
            step = local_step(step)
        if self._anchor:
            self._anchor.begin(self.num_steps)
        lr = learning_rate(self.num_steps, self._config.trainer, self._config.run.steps, self.lr)
        if not step.infos:  # no trajectory is left to train, and the step counts
            self.num_steps += 1
            return {"loss": 0.0, "skipped": 1.0, "num_tokens": 0.0, "num_trajectories": 0.0, "lr": lr}
        num_tokens = sum(outcome.length for outcome in step.outcomes)
        step, left_out = self._trained_part.of_step(step, self.num_steps, self._ranks)
        per_token = self._per_token(step)
        estimates = estimate(self._recipe, step.outcomes, per_token, kl_coef=self._kl_controller.coef)
        updates: list[dict[str, float]] = []
        for _ in range(self._config.trainer.epochs):
            for places in step.mini_batches(self._config.trainer.mini_batches):
                mini_batch = self._mini_batch(step, places, per_token, estimates)
                # Only the first update starts from the published weights.
                update = self._updates.policy(mini_batch, lr, None if updates else policy_version)
                updates.append(update | self._updates.critic(mini_batch, lr_scale=lr / self.lr))
        self.num_steps += 1
        if (kl := estimates.metrics.get("kl_in_reward")) is not None:
            self._kl_controller.update(kl, len(step.infos))
        statistics = _step_statistics(step, estimates) | {"num_tokens": float(num_tokens)} | left_out
        return merged(updates) | dict(estimates.metrics) | statistics | {"lr": lr}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights to publish by Hugging Face name, tied ones once. Borrowed until the next `train`. Collective."""
        return self.policy.named_weights()

    def gather_weights(self) -> None:
        """Take part in the collectives while the first rank reads its `named_weights`."""
        for _ in self.named_weights():
            pass

    def snapshot(self, folder: Path | None = None) -> Snapshot:
        """
        Write this rank's part of everything that a checkpoint contains to a folder, or copy it. Collective.

        The ranks of the first machine have a part each; those of other machines have none.

        Raises:
            OSError: The disk failed.
        """
        part = CheckpointPart(self._ranks.rank, min(self._ranks.size, self._config.trainer.ranks))
        own, shapes = OwnPart(part, folder), self.policy.saved_shapes()
        weight_parts = divide({name: one.nbytes for name, one in shapes.items()}, part.count)
        weights = own.take(MODEL, weight_parts, shapes, self.policy.saved_weights())
        tensors = {}
        for name, state in self._models.tensors().items():
            shapes = emptied(state)
            parts = divide({name: one.nbytes for name, one in shapes.items()}, part.count)
            tensors[name] = own.take(f"{TENSORS}/{name}", parts, shapes, gathered(state))
        return Snapshot(
            configs=self.policy.configs,
            part=part,
            files=own.files,
            weights=weights,
            weight_parts=weight_parts,
            tensors=tensors,
            state={"kl_coef": self._kl_controller.coef},
            random_state=torch.get_rng_state().numpy().tobytes(),
        )

    def sleep(self) -> int:
        """
        Move parameters, moments, reference and critic to host memory, and free the device's. Collective.

        Returns the number of bytes that all ranks moved, once all have; 0 on a CPU.
        """
        own = self._offloader.offload(*self._models.memory())
        return sum(int.from_bytes(part) for part in self._ranks.all_gather(own.to_bytes(8)))

    def wake(self) -> None:
        """Bring parameters, moments, reference and critic back to the device. Collective."""
        self._offloader.onload()

    def resume(self, num_steps: int, tensors: Mapping[str, Stored], state: Mapping[str, float] | None = None) -> None:
        """
        Continue as after ``num_steps`` steps, with the `Snapshot.tensors` of all ranks, and `Snapshot.state`.

        Of each tensor, the rows that this rank holds are read.

        Raises:
            LedgerError: The tensors are not of these models.
        """
        self._models.restore(tensors)
        self._kl_controller.coef = (state or {}).get("kl_coef", self._kl_controller.coef)
        self.num_steps = num_steps

    def _per_token(self, step: TrainingStep) -> dict[str, PerToken]:
        """Per-token numbers that the algorithm needs for the whole step, under the models before it. Collective."""
        own: dict[str, dict[int, NDArray[np.float32]]] = {}
        if wanted := self._recipe.wanted:
            own |= self._score(step, wanted)
            own[BEHAVIOR] = {place: one.behavior_logprobs for place, one in step.trajectories.items()}
        if self._recipe.reads_token_rewards:
            own[TOKEN_REWARDS] = {place: token_rewards(one) for place, one in step.trajectories.items()}
        if not own:
            return {}
        lengths = [outcome.length for outcome in step.outcomes]
        return all_gather_per_token(own, lengths=lengths, owners=step.owners, ranks=self._ranks)

    @torch.no_grad()
    def _score(self, step: TrainingStep, wanted: Collection[str]) -> dict[str, dict[int, NDArray[np.float32]]]:
        """Numbers from the models for this rank's trajectories, by name and place."""
        own: dict[str, dict[int, NDArray[np.float32]]] = {name: {} for name in wanted}
        everything, max_tokens = range(len(step.infos)), self._config.trainer.max_tokens_per_micro_batch
        with self._anchor.applied() if self._anchor else nullcontext():
            for places in step.micro_batches(everything, self._ranks, max_tokens):
                batch = self._models.collate(step.select(places))
                with collective():
                    found = self._models.score(batch, wanted)
                for name, values in found.items():
                    parts = torch.split(values.float().cpu(), list(batch.lengths))
                    own[name] |= {place: part.numpy() for place, part in zip(places, parts, strict=True)}
        return own

    def _mini_batch(
        self, step: TrainingStep, places: Sequence[int], per_token: Mapping[str, PerToken], estimates: Estimates
    ) -> MiniBatch:
        recipe, group_ids = self._recipe, [step.infos[place].outcome.group_id for place in places]
        weights = recipe.token_weights([estimates.num_kept(place) for place in places], group_ids)
        return MiniBatch(
            step=step,
            places=places,
            estimates=estimates,
            token_weights=dict(zip(places, weights, strict=True)),
            old_logprobs=per_token[LOGPROBS] if recipe.is_decoupled else None,
            ref_logprobs=per_token[REFERENCE] if recipe.penalises_loss else None,
            old_values=per_token.get(VALUES),
            selected=select_tokens(recipe, step, places, per_token, estimates, seed=self.num_steps),
        )


def _step_statistics(step: TrainingStep, estimates: Estimates) -> dict[str, float]:
    """Metrics over all trajectories of the step, trained on or not."""
    rewards = [outcome.reward for outcome in step.outcomes]
    advantages = [float(one.mean()) if len(one) else 0.0 for one in estimates.advantages]
    return {
        "reward_mean": fmean(rewards),
        "reward_std": pstdev(rewards),
        "advantage_mean": fmean(advantages),
        "advantage_std": pstdev(advantages),
        "zero_advantage_fraction": fmean(not one.any() for one in estimates.advantages),
        "num_trajectories": float(len(rewards)),
    }
