"""
Terms of a recipe's loss, each computed alone from the log-probs and rewards of a run: float64 NumPy, no trainer.

    rewards ─▶ advantages ┐   old, sampled ─▶ importance, kept tokens ─▶ weights ┐
    new, old ─▶ ratio, clip ┴▶ policy loss ──────────────────────────────────────┼─▶ loss
    new, reference ─▶ KL ────────────────────────────────────────────────────────┘
"""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from asyncrl.config.config import Config

Floats = NDArray[np.float64]
DUAL_CLIP = 3.0
"""Default of ``algorithm.dual_clip``."""
MOST_KL = 10.0
"""Nats at which k3 is cut off, as in verl."""


class Terms(Struct, frozen=True):
    """Terms of one update, by place where they are tokens'."""

    advantages: dict[str, Floats]
    importance: dict[str, Floats]
    keep: dict[str, NDArray[np.bool_]]
    policy_loss: float
    kl_loss: float
    clip_fraction: float
    kl_ref: float


def of_update(config: Config, update: dict[str, Any]) -> Terms:
    """Compute the terms of a recorded update."""
    algorithm, correction = config.algorithm, config.algorithm.correction
    sampled = {place: np.array(values) for place, values in update["behavior"].items()}
    old = {place: np.array(values) for place, values in (update["old"] or update["behavior"]).items()}
    moved = {place: old[place] - sampled[place] for place in sampled}
    keep = {place: np.full(len(one), _is_kept(config, one)) for place, one in moved.items()}
    importance = {place: np.ones(len(one)) for place, one in moved.items()}
    if correction.importance == "sequence":
        weights = {
            place: min(np.exp(one.sum()), float(correction.importance_threshold)) for place, one in moved.items()
        }
        mean = np.mean(list(weights.values())) if correction.importance_normalize else 1.0
        importance = {place: np.full(len(one), weights[place] / mean) for place, one in moved.items()}
    advantages = {place: _advantage(update, int(place)) * keep[place] for place in sampled}
    # One whose group has equal rewards may not be fetched: without a correction, all its tokens count.
    lengths = {str(place): update["lengths"][place] for place in update["places"]}
    kept = {place: int(keep[place].sum()) if place in keep else length for place, length in lengths.items()}
    assert algorithm.clip_low is not None
    assert algorithm.clip_high is not None
    policy_loss = kl_loss = 0.0
    clipped, kl_of_tokens = list[NDArray[np.bool_]](), list[Floats]()
    for place, values in update["new"].items():
        new, weight = np.array(values), _weight(config, kept, place)
        ratio, advantage = np.exp(new - old[place]), advantages[place]
        free, bound = -advantage * ratio, -advantage * np.clip(ratio, 1 - algorithm.clip_low, 1 + algorithm.clip_high)
        losses = np.maximum(free, bound)
        losses = np.where(advantage < 0, np.minimum(losses, -advantage * (algorithm.dual_clip or DUAL_CLIP)), losses)
        policy_loss += (weight * importance[place] * losses)[keep[place]].sum()
        clipped.append((bound > free)[keep[place]])
        if algorithm.kl_coef:
            away = np.array(update["ref"][place]) - new
            kl_of_tokens.append(np.minimum(np.exp(away) - away - 1, MOST_KL))
            kl_loss += algorithm.kl_coef * (weight * kl_of_tokens[-1])[keep[place]].sum()
    return Terms(advantages, importance, keep, policy_loss, kl_loss, _mean(clipped), _mean(kl_of_tokens))


def _is_kept(config: Config, moved: Floats) -> bool:
    correction = config.algorithm.correction
    if not correction.rejection:
        return True
    assert correction.rejection == "seq_mean_k1", "write its formula here"
    low, high = map(float, str(correction.rejection_threshold).split("_"))
    return bool(low <= np.exp(moved.mean()) <= high)


def _advantage(update: dict[str, Any], place: int) -> float:
    """GRPO's: the reward's distance from its group's mean, in standard deviations."""
    group = update["groups"][place]
    rewards = np.array([r for r, other in zip(update["rewards"], update["groups"], strict=True) if other == group])
    return float((update["rewards"][place] - rewards.mean()) / (rewards.std(ddof=1) + 1e-6))


def _weight(config: Config, kept: dict[str, int], place: str) -> float:
    if config.algorithm.aggregation == "seq-mean-token-mean":
        return 1.0 / (kept[place] + 1e-8) / len(kept)
    assert config.algorithm.aggregation in ("", "token-mean"), "write its formula here"
    return 1.0 / max(sum(kept.values()), 1)


def _mean(parts: list[Any]) -> float:
    return float(np.concatenate(parts).mean()) if parts and sum(map(len, parts)) else 0.0
