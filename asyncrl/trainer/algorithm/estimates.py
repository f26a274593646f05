"""
Advantages, value targets and masks of a step, computed before its first update; token rewards, and tokens that a loss
selects.

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

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.loss_tokens import StepTokens, token_keys
from asyncrl.algo.outcomes import Outcome
from asyncrl.algo.value import explained_variance
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, TOKEN_REWARDS, VALUES, Recipe
from asyncrl.trainer.packing.batch import turns_of
from asyncrl.trainer.packing.step import PerToken, TrainingStep, TrainingTrajectory

BEHAVIOR = "behavior_logprobs"
TOKEN_FIELDS = ("penalties", "logprobs", "sum_pi_squared", "values", "importance")
"""Fields of an `Outcome` of shape [T]."""
Masks = list[NDArray[np.bool_]]
"""Masks of a step: [T] bool of each of its trajectories."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Estimates for the S trajectories of a step, indexed by place."""

    advantages: PerToken
    """[T] of each trajectory; all exactly zero for one without a learning signal."""
    value_targets: PerToken | None = None
    importance: PerToken | None = None
    """Weights of the rollout correction; None for ones."""
    keep: Masks | None = None
    """False where the correction rejects a token; None if it rejects nothing."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def kept(self, place: int) -> NDArray[np.bool_]:
        """[T] True for the tokens of a trajectory that are not rejected."""
        return np.ones(len(self.advantages[place]), np.bool_) if self.keep is None else self.keep[place]

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
        # The rewards of rejected tokens move to the kept one before them, which has no share in those before it.
        moved, places = np.zeros(int(keep.sum())), keep.cumsum() - 1
        has_earned = places >= 0
        np.add.at(moved, places[has_earned], outcome.rewards[has_earned])
        cut[TOKEN_REWARDS] = moved + (0.0 if cut["penalties"] is None else cut["penalties"])
    return replace(outcome, length=int(keep.sum()), reward=outcome.reward - rejected_penalty, **cut)


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
    weights, keep = recipe.correct(logprobs, behavior, sequences)
    found = recipe.correct.metrics(logprobs, behavior, sequences)
    metrics = {f"rollout_corr/{name}": value for name, value in found.items()}  # verl's metric names
    return _split(weights, sequences), _split(keep, sequences), metrics


def _split(values: Tensor | None, sequences: Ragged) -> list[NDArray[Any]] | None:
    """Split [N] into [T] of each trajectory."""
    if values is None:
        return None
    return [part.numpy() for part in torch.split(values, sequences.lengths.tolist())]


# ── token rewards ─────────────────────────────────────────────────────────────────────────────
# Rewards of an episode, token by token, for estimators with a return to go.
#
#     turns     ▁▁▁▁▁ ▁▁▁ ▁▁▁▁▁▁        rewards of the turns .5, 0, .2; verdict 1
#     tokens    ....5 ..0 .....5        each at the end of its turn, and what the verdict has besides at the end of all


def token_rewards(trajectory: TrainingTrajectory) -> NDArray[np.float32]:
    """
    [T] rewards, whose sum is the verdict.

    A turn of which nothing is trained gives its reward to the last trained token before it. If there is none, nothing
    that is trained has earned it, and it is left out.
    """
    rewards = np.zeros(len(trajectory.completion_ids))
    num_written, rest = 0, trajectory.reward
    for turn in turns_of(trajectory):
        num_written += turn.num_written
        rest -= turn.reward
        if num_written:
            rewards[num_written - 1] += turn.reward
    if num_written:
        rewards[-1] += rest
    return rewards.astype(np.float32)


# ── selecting ─────────────────────────────────────────────────────────────────────────────────
# Token selection of losses that treat some tokens of a mini-batch apart; every rank selects the same tokens.


def select_tokens(
    recipe: Recipe,
    step: TrainingStep,
    places: Sequence[int],
    per_token: Mapping[str, PerToken],
    estimates: Estimates,
    *,
    seed: int,
) -> dict[int, NDArray[np.bool_]] | None:
    """
    Select tokens of the trajectories at ``places``: [T] by place, or None if the loss has no selection.

    Log-probs are those of the policy before the step: every rank has them, and for the first mini-batch it is the
    policy in training.
    """
    if recipe.select is None:
        return None
    infos = [step.infos[place] for place in places]
    lengths = [info.outcome.length for info in infos]
    logprobs, old = per_token[LOGPROBS], per_token[LOGPROBS if recipe.is_decoupled else BEHAVIOR]
    selected = recipe.select(
        StepTokens(
            advantages=_joined([estimates.advantages[place] for place in places]),
            logprobs=_joined([logprobs[place] for place in places]),
            old_logprobs=_joined([old[place] for place in places]),
            keys=token_keys([info.outcome.group_id for info in infos], [info.index for info in infos], lengths),
            seed=seed,
        )
    )
    return dict(zip(places, np.split(selected, np.cumsum(lengths)[:-1]), strict=True))


def _joined(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([*parts, np.empty(0)])
