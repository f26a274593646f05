"""
Advantages, value targets and masks of a step, computed before its first update.

    per-token numbers (log-probs, reference, values) ─┐   KL in the reward ─▶ correction ─▶ advantages
    rewards ──────────────────────────────────────────┴──── one after the other, over the whole step

The order is verl's. A token that the correction rejects counts in no mean over tokens, and a trajectory it rejects is
not trained on, but its reward still counts in its group.
Numpy on the host, with the same result on every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.outcomes import Floats, Outcome
from asyncrl.algo.ragged import Ragged
from asyncrl.algo.value import explained_variance
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, TOKEN_REWARDS, VALUES, Recipe
from asyncrl.trainer.ranks.per_token import PerToken

BEHAVIOR = "behavior_logprobs"
TOKEN_FIELDS = ("penalties", "logprobs", "sum_pi_squared", "values", "importance")
"""Fields of an `Outcome` of shape [T]."""
Masks = list[NDArray[np.bool_]]
"""[T] of each trajectory of a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Estimates for the S trajectories of a step, indexed by place."""

    advantages: PerToken
    """All exactly zero for a trajectory without a learning signal."""
    value_targets: PerToken | None = None
    importance: PerToken | None = None
    """Weights of the rollout correction; None for ones."""
    keep: Masks | None = None
    """False where the correction rejects a token; None if it rejects nothing."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def num_tokens(self, place: int) -> int:
        return len(self.advantages[place])

    def kept(self, place: int) -> NDArray[np.bool_]:
        """[T] True for the tokens of a trajectory that are not rejected."""
        return np.ones(self.num_tokens(place), np.bool_) if self.keep is None else self.keep[place]

    def num_kept(self, place: int) -> int:
        return int(self.kept(place).sum())


def estimate(
    recipe: Recipe, outcomes: Sequence[Outcome], per_token: Mapping[str, PerToken], *, kl_coef: float = 0.0
) -> Estimates:
    """
    Compute everything that depends on the whole step of S outcomes.

    Args:
        per_token: Numbers named by `Recipe.wanted`, ``behavior_logprobs`` if the recipe is decoupled, and
            ``token_rewards`` if it reads them.
        kl_coef: Current coefficient of the KL in the reward.

    Raises:
        AsyncrlError: The advantage estimator does not apply to these outcomes.
    """
    penalties, metrics = _kl_penalties(recipe, per_token, kl_coef)
    importance: PerToken | None = None
    keep: Masks | None = None
    if recipe.is_decoupled:
        importance, keep, corrected = _correct(recipe, per_token)
        metrics |= corrected
    fields = {name: per_token.get(name) for name in (LOGPROBS, VALUES, SUM_PI_SQUARED, TOKEN_REWARDS)}
    fields |= {"penalties": penalties, "importance": importance}
    complete = []
    for place, outcome in enumerate(outcomes):
        known: dict[str, Any] = {name: values[place] for name, values in fields.items() if values is not None}
        complete.append(replace(outcome, **known))
    if keep is not None:
        complete = [_without_rejected(outcome, mask) for outcome, mask in zip(complete, keep, strict=True)]
    advantages = list(recipe.advantages(complete))
    targets = list(recipe.value_targets(complete)) if VALUES in per_token else None
    if targets is not None:
        values = [outcome.values for outcome in complete if outcome.values is not None]
        metrics["critic_explained_variance"] = explained_variance(np.concatenate(values), np.concatenate(targets))
    if keep is not None:
        advantages = _zero_filled(advantages, keep)
        targets = None if targets is None else _zero_filled(targets, keep)
    return Estimates(advantages, targets, importance, keep, metrics)


def _without_rejected(outcome: Outcome, keep: NDArray[np.bool_]) -> Outcome:
    """Drop the rejected tokens of a trajectory; its reward and the sum of its penalties stay."""
    rejected_penalty = 0.0 if outcome.penalties is None else float(outcome.penalties[~keep].sum())
    fields = {name: getattr(outcome, name) for name in TOKEN_FIELDS}
    cut: dict[str, Any] = {name: None if values is None else values[keep] for name, values in fields.items()}
    if outcome.token_rewards is not None:
        cut[TOKEN_REWARDS] = _moved(outcome.rewards, keep) + (0.0 if cut["penalties"] is None else cut["penalties"])
    return replace(outcome, length=int(keep.sum()), reward=outcome.reward - rejected_penalty, **cut)


def _moved(rewards: Floats, keep: NDArray[np.bool_]) -> Floats:
    """Rewards of the kept tokens, each with those of the rejected tokens up to the next kept one."""
    moved, places = np.zeros(int(keep.sum())), keep.cumsum() - 1
    has_earned = places >= 0  # A kept token has no share in what was rewarded before it.
    np.add.at(moved, places[has_earned], rewards[has_earned])
    return moved


def _zero_filled(kept: PerToken, keep: Masks) -> PerToken:
    """Expand values of kept tokens to [T] of each trajectory, zero where a token is rejected."""
    filled = [np.zeros(len(mask)) for mask in keep]
    for values, mask, part in zip(filled, keep, kept, strict=True):
        values[mask] = part
    return filled


def _kl_penalties(
    recipe: Recipe, per_token: Mapping[str, PerToken], kl_coef: float
) -> tuple[PerToken | None, dict[str, float]]:
    """Per-token KL to the reference times its coefficient, and metrics with the mean KL over trajectories."""
    if not recipe.penalises_reward:
        return None, {}
    kl = [
        recipe.reward_kl(torch.from_numpy(logprobs), torch.from_numpy(reference)).numpy()
        for logprobs, reference in zip(per_token[LOGPROBS], per_token[REFERENCE], strict=True)
    ]
    mean = float(np.mean([one.mean() for one in kl if len(one)] or [0.0]))
    return [kl_coef * one for one in kl], {"kl_in_reward": mean, "kl_coef": kl_coef}


def _correct(
    recipe: Recipe, per_token: Mapping[str, PerToken]
) -> tuple[PerToken | None, Masks | None, dict[str, float]]:
    sequences = Ragged([len(one) for one in per_token[LOGPROBS]])
    logprobs, behavior = (torch.from_numpy(np.concatenate(per_token[name])) for name in (LOGPROBS, BEHAVIOR))
    corrected = recipe.correct(logprobs, behavior, sequences)
    found = recipe.correct.metrics(logprobs, behavior, sequences)
    metrics = {f"rollout_corr/{name}": value for name, value in found.items()}  # verl's metric names
    return _split(corrected.weights, sequences), _split(corrected.keep, sequences), metrics


def _split(values: Tensor | None, sequences: Ragged) -> list[NDArray[Any]] | None:
    """Split [N] into [T] of each trajectory."""
    if values is None:
        return None
    return [part.numpy() for part in torch.split(values, sequences.lengths.tolist())]
