"""
What is known of a step before the first gradient: advantages, what the critic should have said, what is left out.

    columns (log-probs, reference, values) ─┐   KL in the reward ─▶ correction ─▶ advantages
    scores ─────────────────────────────────┴──────────────── one after the other, over the whole step

The order is verl's. A token that correction rejects is in no mean over tokens, and a trajectory it rejects is not
trained on; but what it scored still counts in its group.
Numpy on the host, and the same on every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.outcomes import Outcome
from asyncrl.algo.ragged import Ragged
from asyncrl.algo.value import explained_variance
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES, Recipe
from asyncrl.trainer.ranks.per_token import Column

BEHAVIOR = "behavior_logprobs"
PER_TOKEN = ("penalties", "logprobs", "sum_pi_squared", "values", "importance")
"""What an `Outcome` has [T] of."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Of S trajectories."""

    advantages: Column
    """[T] of each; all exactly zero where there is nothing to learn."""
    value_targets: Column | None = None
    importance: Column | None = None
    """[T] weights of the rollout correction; None for ones."""
    keep: list[NDArray[np.bool_]] | None = None
    """[T] False where the correction rejects; None where it rejects nothing."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def size(self, place: int) -> int:
        """Tokens of a trajectory."""
        return len(self.advantages[place])

    def kept(self, place: int) -> NDArray[np.bool_]:
        """[T] the tokens of a trajectory that count."""
        return np.ones(self.size(place), np.bool_) if self.keep is None else self.keep[place]

    def length(self, place: int) -> int:
        """How many those are."""
        return int(self.kept(place).sum())


def estimate(
    recipe: Recipe, outcomes: Sequence[Outcome], columns: Mapping[str, Column], *, kl_coef: float = 0.0
) -> Estimates:
    """
    All that the whole step has to be looked at for.

    Args:
        recipe: The algorithm.
        outcomes: [S].
        columns: Those that `Recipe.wanted` names, and ``behavior_logprobs`` if it is decoupled.
        kl_coef: Of the KL in the reward, as the controller has it now.

    Raises:
        AsyncrlError: The estimator cannot say anything about these.
    """
    penalties, metrics = _penalties(recipe, columns, kl_coef)
    importance: Column | None = None
    keep: list[NDArray[np.bool_]] | None = None
    if recipe.is_decoupled:
        importance, keep, corrected = _corrected(recipe, columns)
        metrics |= corrected
    seen = [
        replace(
            outcome,
            penalties=penalties[place] if penalties else None,
            logprobs=_at(columns, LOGPROBS, place),
            values=_at(columns, VALUES, place),
            sum_pi_squared=_at(columns, SUM_PI_SQUARED, place),
            importance=importance[place] if importance else None,
        )
        for place, outcome in enumerate(outcomes)
    ]
    if keep is not None:
        seen = [_kept(outcome, mask) for outcome, mask in zip(seen, keep, strict=True)]
    advantages = list(recipe.advantages(seen))
    targets = list(recipe.value_targets(seen)) if VALUES in columns else None
    if targets is not None:
        foreseen = [outcome.values for outcome in seen if outcome.values is not None]
        metrics["critic_explained_variance"] = explained_variance(np.concatenate(foreseen), np.concatenate(targets))
    if keep is not None:
        advantages = _in_place(advantages, keep)
        targets = None if targets is None else _in_place(targets, keep)
    return Estimates(advantages, targets, importance, keep, metrics)


def _kept(outcome: Outcome, keep: NDArray[np.bool_]) -> Outcome:
    """The trajectory without the tokens that correction rejects. What it scored, and what it was fined, stays."""
    fined = 0.0 if outcome.penalties is None else float(outcome.penalties[~keep].sum())
    columns = {name: getattr(outcome, name) for name in PER_TOKEN}
    cut: dict[str, Any] = {name: None if values is None else values[keep] for name, values in columns.items()}
    return replace(outcome, length=int(keep.sum()), reward=outcome.reward - fined, **cut)


def _in_place(kept: Column, keep: list[NDArray[np.bool_]]) -> Column:
    """[T] of each trajectory, zero where a token is rejected."""
    whole = [np.zeros(len(mask)) for mask in keep]
    for values, mask, part in zip(whole, keep, kept, strict=True):
        values[mask] = part
    return whole


def _penalties(recipe: Recipe, columns: Mapping[str, Column], kl_coef: float) -> tuple[Column | None, dict[str, float]]:
    """KL to the reference, token by token, times its coefficient; and the KL of the mean trajectory."""
    if not recipe.penalises_reward:
        return None, {}
    kl = [
        recipe.kl(torch.from_numpy(ours), torch.from_numpy(theirs)).numpy()
        for ours, theirs in zip(columns[LOGPROBS], columns[REFERENCE], strict=True)
    ]
    mean = float(np.mean([one.mean() for one in kl if len(one)] or [0.0]))
    return [kl_coef * one for one in kl], {"kl_in_reward": mean, "kl_coef": kl_coef}


def _corrected(
    recipe: Recipe, columns: Mapping[str, Column]
) -> tuple[Column | None, list[NDArray[np.bool_]] | None, dict[str, float]]:
    sequences = Ragged([len(one) for one in columns[LOGPROBS]])
    logprobs, behavior = (torch.from_numpy(np.concatenate(columns[name])) for name in (LOGPROBS, BEHAVIOR))
    corrected = recipe.correct(logprobs, behavior, sequences)
    found = recipe.correct.metrics(logprobs, behavior, sequences)
    metrics = {f"rollout_corr/{name}": value for name, value in found.items()}  # verl's names, which people look for
    return _cut(corrected.weights, sequences), _cut(corrected.keep, sequences), metrics


def _cut(values: Tensor | None, sequences: Ragged) -> list[NDArray[Any]] | None:
    """[T] of each trajectory, of [N]."""
    if values is None:
        return None
    return [part.numpy() for part in torch.split(values, sequences.lengths.tolist())]


def _at(columns: Mapping[str, Column], name: str, place: int) -> NDArray[np.float64] | None:
    return columns[name][place] if name in columns else None
