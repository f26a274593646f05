"""
One optimizer step: scored trajectories in, a better policy and its metrics out.

    samples ─▶ advantages ─▶ leave out the zeros ─▶ micro-batches ─▶ forward, loss, backward ─▶ clip ─▶ AdamW
                   └──────── totals, over everything ─────────────────────────┘

How a step is cut into micro-batches changes memory and time, never the loss: each token's weight in it comes from
totals over the whole step. Everything here is synchronous; the trainer's actor runs it in a thread.

What is computed again for trajectories and what is not: log-probs under the policy being trained are; those under the
policy that sampled are the recorded ones, and the ratio is taken against them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from pathlib import Path
from statistics import fmean, pstdev

import torch
from torch import Tensor

from asyncrl.algo.advantage import ADVANTAGES
from asyncrl.algo.aggregate import AGGREGATIONS, Totals
from asyncrl.algo.clipped import clipped_loss
from asyncrl.algo.kl import KL_ESTIMATORS
from asyncrl.config import Config
from asyncrl.errors import AsyncrlError
from asyncrl.trainer.batch import MicroBatch, TrainingSample, collate
from asyncrl.trainer.learning_rate import learning_rate
from asyncrl.trainer.logprob_gap import Comparable
from asyncrl.trainer.micro_batches import micro_batches
from asyncrl.trainer.optimizer_state import restore_state, state_tensors
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.tally import Tally
from asyncrl.weights.plan import TensorSpec


class Learner:
    """
    Owns the policy in training, its optimizer and, if the loss has a KL term, the reference it is held to.

    Installs nothing global: the number of torch threads and the random seed are the process's affair.
    """

    def __init__(self, config: Config, model_path: Path, *, reference_path: Path | None = None) -> None:
        """
        Args:
            config: Its ``algorithm``, ``trainer``, ``sampling``, ``rollout.kv``, ``model.dtype`` and ``run.steps`` are
                read.
            model_path: Where the policy starts: the base model, or a checkpoint.
            reference_path: The policy ``algorithm.kl_coef`` holds it to; None takes ``model_path``.

        Raises:
            ConfigError: A model cannot be loaded, or not be trained as configured.
        """
        self._config = config
        self._num_steps = 0
        self._comparable = Comparable(config)
        trainer, dtype = config.trainer, config.model.dtype
        self._policy = Policy(model_path, dtype=dtype, gradient_checkpointing=trainer.gradient_checkpointing)
        self._reference = Policy(reference_path or model_path, dtype=dtype) if config.algorithm.kl_coef else None
        self._parameters = self._policy.parameters()
        for weight in self._parameters.values():
            weight.grad = torch.zeros_like(weight)  # a step without any signal is a step with gradient zero, not None
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=trainer.lr,
            betas=(trainer.beta1, trainer.beta2),
            eps=trainer.eps,
            weight_decay=trainer.weight_decay,
            fused=True,
        )

    @property
    def num_steps(self) -> int:
        """Steps taken, skipped ones included. The learning rate follows it."""
        return self._num_steps

    @property
    def policy(self) -> Policy:
        """The model in training: what a checkpoint saves."""
        return self._policy

    def train(self, samples: Sequence[TrainingSample], policy_version: int | None = None) -> dict[str, float]:
        """
        Take one optimizer step on whole groups.

        Args:
            samples: Trajectories, those of a group adjacent.
            policy_version: What the weights, as they are before the step, were published as; None if they were not.

        Returns:
            Metrics. ``skipped`` is 1 if loss or gradient was not finite and the weights were left as they were. Those
            of the log-prob gap are there if ``policy_version`` wrote a token.

        Raises:
            AsyncrlError: There are no samples, or a group is scattered.
            ConfigError: A trajectory is longer than a micro-batch may be.
        """
        advantages = self._advantages(samples)
        totals = self._totals(samples)
        tally = self._backward(samples, advantages, totals, policy_version)
        metrics = tally.metrics()
        metrics |= self._update(metrics["loss"])
        rewards = [sample.reward for sample in samples]
        return metrics | {
            "reward_mean": fmean(rewards),
            "reward_std": pstdev(rewards),
            "advantage_mean": fmean(advantages),
            "advantage_std": pstdev(advantages),
            "zero_advantage_fraction": advantages.count(0.0) / len(advantages),
            "num_tokens": float(totals.num_tokens),
            "num_trajectories": float(totals.num_trajectories),
        }

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights to publish, tied ones once, by Hugging Face name. Borrowed until the next `train`."""
        return self._policy.named_weights()

    def specs(self) -> list[TensorSpec]:
        """What `named_weights` yields, in its order."""
        return self._policy.specs()

    def optimizer_state(self) -> dict[str, Tensor]:
        """AdamW's moments by name. Borrowed until the next `train`."""
        return state_tensors(self._optimizer, self._parameters)

    def resume(self, num_steps: int, optimizer_state: Mapping[str, Tensor]) -> None:
        """
        Go on as if this learner had taken ``num_steps`` steps.

        Raises:
            LedgerError: The state is not that of this model's optimizer.
        """
        restore_state(self._optimizer, self._parameters, optimizer_state)
        self._num_steps = num_steps

    def _advantages(self, samples: Sequence[TrainingSample]) -> list[float]:
        """[len(samples)], centred within groups."""
        estimate = ADVANTAGES[self._config.algorithm.advantage]
        groups = [(key, list(group)) for key, group in groupby(samples, key=lambda sample: sample.group_id)]
        seen = {group_id for group_id, _ in groups}
        if not samples or len(seen) != len(groups):
            raise AsyncrlError(
                f"train: expected whole groups, samples of a group adjacent; got {len(samples)} samples of {len(seen)} "
                f"groups in {len(groups)} runs"
            )
        return [advantage for _, group in groups for advantage in estimate([sample.reward for sample in group])]

    def _totals(self, samples: Sequence[TrainingSample]) -> Totals:
        """Of every trajectory of the step, those with zero advantage included."""
        norm = self._config.algorithm.aggregation_norm or float(self._config.sampling.max_tokens)
        return Totals(sum(len(sample.completion_ids) for sample in samples), len(samples), norm)

    def _backward(
        self,
        samples: Sequence[TrainingSample],
        advantages: Sequence[float],
        totals: Totals,
        policy_version: int | None,
    ) -> Tally:
        """Gradient of this rank's trajectories into ``.grad``. Sums: a caller may add those of other ranks."""
        weigh = AGGREGATIONS[self._config.algorithm.aggregation or "token-mean"]
        # Without a KL term a trajectory with advantage zero has loss zero and gradient zero, whatever its ratio.
        used = [i for i in range(len(samples)) if advantages[i] or self._reference is not None]
        lengths = [samples[i].num_tokens for i in used]
        tally = Tally()
        for indices in micro_batches(lengths, self._config.trainer.max_tokens_per_micro_batch):
            rows = [used[i] for i in indices]
            chosen = [samples[i] for i in rows]
            batch = collate(
                chosen,
                [advantages[i] for i in rows],
                [weigh(len(sample.completion_ids), totals) for sample in chosen],
                self._comparable.tokens(chosen, policy_version),
                device=self._policy.device,
            )
            self._loss(batch, tally).backward()  # type: ignore[no-untyped-call]
        return tally

    def _loss(self, batch: MicroBatch, tally: Tally) -> Tensor:
        """[] this micro-batch's share of the step's loss."""
        algorithm, temperature = self._config.algorithm, self._config.sampling.temperature
        logprobs = self._policy.logprobs(batch, temperature=temperature)
        clipped = clipped_loss(
            logprobs,
            batch.behavior_logprobs,
            batch.advantages,
            clip_low=algorithm.clip_low or 0.2,
            clip_high=algorithm.clip_high or 0.28,
            dual_clip=3.0 if algorithm.dual_clip is None else algorithm.dual_clip,
        )
        losses, kl_ref = clipped.losses, None
        if self._reference is not None:
            with torch.no_grad():
                ref_logprobs = self._reference.logprobs(batch, temperature=temperature)
            kl_ref = KL_ESTIMATORS[algorithm.kl](logprobs, ref_logprobs)
            losses = losses + algorithm.kl_coef * kl_ref
        loss = torch.dot(losses, batch.weights)
        tally.add(batch, logprobs, clipped, loss, kl_ref)
        return loss

    def _update(self, loss: float) -> dict[str, float]:
        """
        Clip, step, and clear the gradient. A step that is not finite is thrown away, and said so.

        The loss is looked at too: the clamps in it give NaN a gradient of zero, which would pass for a sound one.
        """
        trainer = self._config.trainer
        lr = learning_rate(self._num_steps, trainer, self._config.run.steps)
        self._num_steps += 1
        for settings in self._optimizer.param_groups:
            settings["lr"] = lr
        bound = trainer.grad_clip or float("inf")
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), bound))
        if is_finite := isfinite(grad_norm) and isfinite(loss):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        return {"grad_norm": grad_norm, "lr": lr, "skipped": float(not is_finite)}
