"""
Loss of one micro-batch, as its share of the loss of a step.

    loss = Σ_t  w_t ( importance_t · policy_loss_t + sampler_kl_coef · k2_t + kl_coef · KL_t - entropy_coef · H_t )

w_t is the token's weight by the aggregation, and zero where decoupled correction rejects it. In bypass mode the
correction compares the policy in training with the sampler, changes with every update, and is computed here; so is the
mask of divergent sequences in both modes. Rejected and masked tokens are excluded from the policy loss, from the means
that sequence losses take, and from k2, the KL to the policy that sampled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asyncrl.algo.correction.divergent import divergent
from asyncrl.algo.kl import k2
from asyncrl.algo.logprobs import Scores
from asyncrl.algo.losses.tokens import Tokens
from asyncrl.algo.ragged import Ragged
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.trainer.algorithm.mini_batch import LossInputs
from asyncrl.trainer.algorithm.recipe import Recipe

REJECTED = "rollout_corr/rollout_rs_masked_fraction"
"""Metric name shared with decoupled correction, which reports it for the whole step."""
DIVERGENT = "divergent_masked_fraction"
LOG_FLOOR = 1e-10
"""Added to importance before its logarithm, so that one dropped token does not zero a long trajectory; as in verl."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatchLoss:
    """Loss and per-token metrics of a micro-batch."""

    loss: Tensor
    """[] with gradient."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """[N], or fewer if tokens were rejected; numbers or bools, without gradient."""


def objective(recipe: Recipe, algorithm: Algorithm, scores: Scores, inputs: LossInputs) -> MicroBatchLoss:
    """Compute the formula above; ``scores`` [N] contain entropy if ``algorithm.entropy_coef`` is set."""
    loss, metrics = _policy_loss(recipe, scores.logprobs, inputs)
    if inputs.ref_logprobs is not None:
        kl = recipe.kl(scores.logprobs, inputs.ref_logprobs)
        loss = loss + algorithm.kl_coef * torch.dot(kl, inputs.weights)
        metrics["kl_ref"] = kl.detach()
    if scores.entropy is not None:
        loss = loss - algorithm.entropy_coef * torch.dot(scores.entropy, inputs.weights)
        metrics["entropy"] = scores.entropy.detach()
    return MicroBatchLoss(loss, metrics)


def _policy_loss(recipe: Recipe, logprobs: Tensor, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    importance, keep, weights, sequences = inputs.importance, inputs.keep, inputs.weights, inputs.sequences
    masked: dict[str, Tensor] = {}
    if not recipe.is_decoupled:
        importance, keep = recipe.correct(logprobs.detach(), inputs.behavior_logprobs, sequences)
        if keep is not None:
            masked[REJECTED] = ~keep
            if recipe.averages_trajectories:  # These weights divide by the number of all tokens, not of kept.
                weights = weights * sequences.spread(sequences.lengths / sequences.sum(keep.long()).clamp(min=1))
    if recipe.mask_divergent:
        log_ratio = logprobs.detach() - inputs.behavior_logprobs
        is_divergent = divergent(log_ratio, inputs.advantages, sequences, recipe.mask_divergent)
        masked[DIVERGENT] = is_divergent
        keep = ~is_divergent if keep is None else keep & ~is_divergent
    if keep is not None:
        sequences = Ragged(sequences.sum(keep.long()).tolist(), device=logprobs.device)
    policy = recipe.losses(
        Tokens(
            logprobs=_kept(logprobs, keep),
            old_logprobs=_kept(inputs.old_logprobs, keep),
            advantages=_kept(inputs.advantages, keep),
            sequences=sequences,
            is_selected=None if inputs.is_selected is None else _kept(inputs.is_selected, keep),
        )
    )
    losses = policy.losses
    if importance is not None:
        importance = _kept(importance, keep)
        if recipe.loss.entry.is_of_sequences:
            importance = sequences.spread(sequences.mean((importance + LOG_FLOOR).log()).exp())
        losses = losses * importance
    if recipe.sampler_kl_coef:
        kl = k2(_kept(logprobs, keep), _kept(inputs.behavior_logprobs, keep))
        losses = losses + recipe.sampler_kl_coef * kl
    return torch.dot(losses, _kept(weights, keep)), {**policy.metrics, **masked}


def _kept(values: Tensor, keep: Tensor | None) -> Tensor:
    return values if keep is None else values[keep]
