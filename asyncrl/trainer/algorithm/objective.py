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
from asyncrl.plug_in import is_path
from asyncrl.trainer.algorithm.mini_batch import LossInputs
from asyncrl.trainer.algorithm.recipe import Recipe

REJECTED = "rollout_corr/rollout_rs_masked_fraction"
"""Metric name shared with decoupled correction, which reports it for the whole step."""
DIVERGENT = "divergent_masked_fraction"
PROBED = 8
"""Tokens of each of two trajectories at which the objective is asked whether it has a gradient."""
LOG_FLOOR = 1e-10
"""Added to importance before its logarithm, so that one dropped token does not zero a long trajectory; as in verl."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatchLoss:
    """Loss and per-token metrics of a micro-batch."""

    loss: Tensor
    """[] with gradient."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """[N], or fewer if tokens were rejected; numbers or bools, without gradient."""
    keep: Tensor | None = None
    """[N] bool, tokens that are in a term of the loss; None if all are."""


def objective(recipe: Recipe, algorithm: Algorithm, scores: Scores, inputs: LossInputs) -> MicroBatchLoss:
    """Compute the formula above; ``scores`` [N] contain entropy if ``algorithm.entropy_coef`` is set."""
    loss, metrics, keep = _policy_loss(recipe, scores.logprobs, inputs)
    if inputs.ref_logprobs is not None:
        kl = recipe.kl(scores.logprobs, inputs.ref_logprobs)
        loss, keep = loss + algorithm.kl_coef * torch.dot(kl, inputs.weights), inputs.keep
        metrics["kl_ref"] = kl.detach()
    if scores.entropy is not None:
        loss, keep = loss - algorithm.entropy_coef * torch.dot(scores.entropy, inputs.weights), inputs.keep
        metrics["entropy"] = scores.entropy.detach()
    return MicroBatchLoss(loss, metrics, keep)


def trains_without_advantage(recipe: Recipe, algorithm: Algorithm) -> bool:
    """
    True if tokens of a trajectory whose advantages are all zero have a gradient.

    Asked of the objective itself, so that no term of it can be forgotten: its gradient at tokens that moved from their
    sampler by 1e-4 nats, which no correction rejects, and by up to 4. A loss in a file of a user may be zero at
    these and not at others, so its trajectories are all computed.
    """
    return is_path(algorithm.loss) or any(_has_gradient(recipe, algorithm, moved) for moved in (1e-4, 0.1, 4.0))


def _has_gradient(recipe: Recipe, algorithm: Algorithm, moved: float) -> bool:
    """True if the objective has a gradient at tokens without advantage, which moved by up to ``moved`` nats."""
    sampled = torch.full((2 * PROBED,), -5.0)
    logprobs = (sampled + moved * torch.linspace(-1, 1, PROBED).repeat(2)).requires_grad_()
    entropy = torch.ones_like(sampled).requires_grad_() if algorithm.entropy_coef else None
    inputs = LossInputs(
        sequences=Ragged([PROBED, PROBED]),
        behavior_logprobs=sampled,
        old_logprobs=sampled,
        advantages=torch.zeros_like(sampled),
        weights=torch.ones_like(sampled),
        ref_logprobs=sampled if recipe.penalises_loss else None,
        is_selected=torch.arange(len(sampled)) % 3 == 0 if recipe.select else None,
    )
    loss = objective(recipe, algorithm, Scores(logprobs, entropy=entropy), inputs).loss
    found = torch.autograd.grad(loss, [logprobs] if entropy is None else [logprobs, entropy], allow_unused=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in found)


def _policy_loss(
    recipe: Recipe, logprobs: Tensor, inputs: LossInputs
) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
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
    return torch.dot(losses, _kept(weights, keep)), {**policy.metrics, **masked}, keep


def _kept(values: Tensor, keep: Tensor | None) -> Tensor:
    return values if keep is None else values[keep]
