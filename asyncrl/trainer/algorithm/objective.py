"""
One micro-batch's share of the loss of a step.

    loss = Σ_t  w_t (  importance_t · policy_loss_t  +  kl_coef · KL_t  -  entropy_coef · H_t  )

w_t is what the aggregation says a token weighs, and zero where decoupled correction rejects it. In bypass mode the
correction is between the policy in training and the sampler, changes with every update, and is computed here. Rejected
tokens are no part of the policy's loss in either mode: also not of the means that losses of sequences take.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asyncrl.algo.logprobs import Scores
from asyncrl.algo.losses.tokens import Tokens
from asyncrl.algo.ragged import Ragged
from asyncrl.config.sections import Algorithm
from asyncrl.trainer.algorithm.mini_batch import LossInputs
from asyncrl.trainer.algorithm.recipe import Recipe

REJECTED = "rollout_corr/rollout_rs_masked_fraction"
"""What the metric is called that decoupled correction has of the whole step."""
NO_WEIGHT = 1e-10
"""Of a token that importance drops, in a geometric mean: of a long trajectory something is left, as in verl."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The loss of a micro-batch, and what is worth knowing about it."""

    loss: Tensor
    """[]. Carries the gradient."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """[N] each, or fewer: of the tokens that were kept. Numbers or bools, without gradient."""


def objective(recipe: Recipe, algorithm: Algorithm, scores: Scores, constants: LossInputs) -> Parts:
    """
    The formula above.

    Args:
        scores: Of the policy in training. With entropy, if the algorithm has a coefficient for it.
    """
    loss, metrics = _policy(recipe, scores.logprobs, constants)
    if constants.ref_logprobs is not None:
        kl = recipe.kl(scores.logprobs, constants.ref_logprobs)
        loss = loss + algorithm.kl_coef * torch.dot(kl, constants.weights)
        metrics["kl_ref"] = kl.detach()
    if scores.entropy is not None:
        loss = loss - algorithm.entropy_coef * torch.dot(scores.entropy, constants.weights)
        metrics["entropy"] = scores.entropy.detach()
    return Parts(loss, metrics)


def _policy(recipe: Recipe, logprobs: Tensor, constants: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    importance, keep, sequences = constants.importance, constants.keep, constants.sequences
    rejected: dict[str, Tensor] = {}
    if not recipe.is_decoupled:
        importance, keep = recipe.correct(logprobs.detach(), constants.behavior_logprobs, sequences)
        rejected = {} if keep is None else {REJECTED: ~keep}
    weights = _of(constants.weights, keep)
    if keep is not None:
        of_all, sequences = sequences, Ragged(sequences.sum(keep.long()).tolist(), device=logprobs.device)
        if rejected and recipe.averages_trajectories:  # The weights are those of means over all tokens.
            weights = weights * sequences.spread(of_all.lengths / sequences.lengths.clamp(min=1))
    policy = recipe.losses(
        Tokens(
            logprobs=_of(logprobs, keep),
            old_logprobs=_of(constants.old_logprobs, keep),
            advantages=_of(constants.advantages, keep),
            sequences=sequences,
            is_selected=None if constants.is_selected is None else _of(constants.is_selected, keep),
        )
    )
    losses = policy.losses
    if importance is not None:
        importance = _of(importance, keep)
        if recipe.loss.is_of_sequences:
            importance = sequences.spread(sequences.mean((importance + NO_WEIGHT).log()).exp())
        losses = losses * importance
    return torch.dot(losses, weights), {**policy.metrics, **rejected}


def _of(values: Tensor, keep: Tensor | None) -> Tensor:
    """Of [N], what is kept."""
    return values if keep is None else values[keep]
