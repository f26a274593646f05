"""
Tokens that would take most entropy away, picked out over a whole step before it is cut up.

    cov_t = (A_t - mean A) (logprob_t - mean logprob)

Means and ranks over a micro-batch would depend on what was packed with what. Here every rank sees every token of the
step, and picks the same ones whatever their order: sums are exact, and ties and chance are settled by the token's key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Keys = NDArray[np.int64]

CLIP_LOW, CLIP_HIGH = 1.0, 1.0
"""Bounds of the ratio in Clip-Cov, where selection and loss must agree: wide ones, for the clip is not what counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTokens:
    """All N completion tokens of a step, in any order. The same on every rank."""

    advantages: Floats
    """[N]."""
    logprobs: Floats
    """[N] under the policy the mini-batch begins with, nats."""
    old_logprobs: Floats
    """[N] under the policy the ratio is taken against."""
    keys: Keys
    """[N] by `token_keys`."""
    seed: int = 0
    """Of the step: with the same one the same tokens are picked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A way to pick tokens."""

    function: Callable[..., Bools]
    """``select(step, *, settings)``: [N], keyword arguments named like the settings of ``[algorithm]``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its keyword arguments by name, and their defaults."""


def clip_cov_selection(
    step: StepTokens,
    *,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
    cov_ratio: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
) -> Bools:
    """
    Some of the tokens whose covariance is high, but not absurd, by chance.

    Args:
        step: All tokens.
        clip_low: Tokens whose ratio is clipped below ``1 - clip_low``...
        clip_high: ...or above ``1 + clip_high`` are not picked: they have no gradient to lose.
        cov_ratio: Share of all tokens to pick, if there are so many; one at least.
        cov_low: Only covariances above...
        cov_high: ...and below are considered.

    Returns:
        [N].

    Source:
        Cui et al. 2025, arXiv:2505.22617 (Clip-Cov); defaults: its experiments.
    """
    covariance = _covariance(step)
    is_eligible = (covariance > cov_low) & (covariance < cov_high) & ~_is_clipped(step, clip_low, clip_high)
    eligible = np.flatnonzero(is_eligible)
    lots = _mixed(step.keys[eligible].view(np.uint64) ^ _mixed(np.array([step.seed], np.int64).view(np.uint64)))
    return _picked(eligible[np.argsort(lots, kind="stable")], len(covariance), cov_ratio)


def kl_cov_selection(step: StepTokens, *, cov_ratio: float = 2e-4) -> Bools:
    """
    The tokens whose covariance is highest.

    Args:
        step: All tokens; ``old_logprobs`` are not read.
        cov_ratio: Share of all tokens to pick; one at least.

    Returns:
        [N].

    Source:
        Cui et al. 2025, arXiv:2505.22617 (KL-Cov); default: its experiments.
    """
    covariance = _covariance(step)
    return _picked(np.lexsort((step.keys, -covariance)), len(covariance), cov_ratio)


def token_keys(group_ids: Sequence[int], indices: Sequence[int], lengths: Sequence[int]) -> Keys:
    """
    A number for each token that depends on which it is, and on nothing beside it.

    Args:
        group_ids: [S] of each trajectory's group.
        indices: [S] of the trajectory within its group.
        lengths: [S] tokens of it.

    Returns:
        [N], trajectories end to end. Of a million tokens two have the same key in one step out of 10^7.
    """
    trajectories = _mixed(_mixed(np.array(group_ids, np.int64).view(np.uint64)) ^ np.array(indices, np.uint64))
    positions = np.concatenate([np.empty(0, np.uint64), *(np.arange(length, dtype=np.uint64) for length in lengths)])
    return _mixed(np.repeat(trajectories, lengths) ^ positions).view(np.int64)


def _covariance(step: StepTokens) -> Floats:
    """[N]. Exact sums do not depend on the order."""
    number = max(len(step.keys), 1)
    mean_advantage, mean_logprob = (fsum(column.tolist()) / number for column in (step.advantages, step.logprobs))
    return (step.advantages - mean_advantage) * (step.logprobs - mean_logprob)


def _is_clipped(step: StepTokens, clip_low: float, clip_high: float) -> Bools:
    """[N], the ratio has left the bounds on the side the advantage pushes to."""
    log_ratio = step.logprobs - step.old_logprobs
    is_high, is_low = log_ratio > np.log1p(clip_high), np.exp(np.minimum(log_ratio, 0)) < 1 - clip_low
    return np.where(step.advantages > 0, is_high, is_low & (step.advantages < 0))


def _picked(ranked: NDArray[np.intp], number: int, share: float) -> Bools:
    """[N], the first of ``ranked``, as many as ``share`` of all."""
    is_picked = np.zeros(number, np.bool_)
    is_picked[ranked[: max(int(share * number), 1)]] = True
    return is_picked


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """
    A permutation of the 64-bit numbers that looks like chance.

    Source:
        Steele et al. 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
    """
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
