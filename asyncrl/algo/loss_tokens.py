"""
Input and output of a policy loss (`asyncrl.algo.losses`), and the tokens that some losses select over a whole step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.aggregate import Ragged
from asyncrl.config.catalogue import LossEntry
from asyncrl.errors import AsyncrlError

# ── selection ─────────────────────────────────────────────────────────────────────────────────
# Selection of the tokens that would reduce entropy most, over a whole step before it is split into micro-batches.
#
#     cov_t = (A_t - mean A) (logprob_t - mean logprob)
#
# Means and ranks within a micro-batch would depend on the packing. Here every rank sees every token of the step and
# selects the same ones in any order: sums are exact, and the token's key decides ties and random choices.

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Keys = NDArray[np.int64]

CLIP_LOW, CLIP_HIGH = 1.0, 1.0
"""Bounds of the ratio in Clip-Cov, equal in selection and loss, and wide, because the selection replaces the clip."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTokens:
    """All N completion tokens of a step, in any order, the same on every rank."""

    advantages: Floats
    logprobs: Floats
    """[N] under the policy that the mini-batch begins with, nats."""
    old_logprobs: Floats
    """[N] under the denominator of the ratio, nats."""
    keys: Keys
    """[N] from `token_keys`."""
    seed: int = 0
    """Seed of the step; equal seeds select equal tokens."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of tokens, ready to be called."""

    function: Callable[..., Bools]
    """``select(step, *, settings)``: [N], keyword arguments named like the settings of ``[algorithm]``."""
    settings: Mapping[str, Any]
    """Keyword arguments of the selection by name, and their defaults."""


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
    Random selection of tokens with a high but not extreme covariance.

    Args:
        clip_low: Tokens whose ratio is clipped below ``1 - clip_low`` have no gradient and are not selected.
        clip_high: Likewise for tokens clipped above ``1 + clip_high``.
        cov_ratio: Fraction of all tokens to select, at least one, as far as there are eligible tokens.
        cov_low: Eligible tokens have a covariance above this,
        cov_high: and below this.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (Clip-Cov); defaults: its experiments.
    """
    covariance = _covariance(step)
    log_ratio = step.logprobs - step.old_logprobs
    is_high, is_low = log_ratio > np.log1p(clip_high), np.exp(np.minimum(log_ratio, 0)) < 1 - clip_low
    is_clipped = np.where(step.advantages > 0, is_high, is_low & (step.advantages < 0))
    eligible = np.flatnonzero((covariance > cov_low) & (covariance < cov_high) & ~is_clipped)
    draws = _mixed(step.keys[eligible].view(np.uint64) ^ _mixed(np.array([step.seed], np.int64).view(np.uint64)))
    return _picked(eligible[np.argsort(draws, kind="stable")], len(covariance), cov_ratio)


def kl_cov_selection(step: StepTokens, *, cov_ratio: float = 2e-4) -> Bools:
    """
    Selection of the fraction ``cov_ratio`` of all tokens, at least one, with the highest covariance.

    ``old_logprobs`` are not read.

    Source:
        Cui et al. 2025, arXiv:2505.22617 (KL-Cov); default: its experiments.
    """
    covariance = _covariance(step)
    return _picked(np.lexsort((step.keys, -covariance)), len(covariance), cov_ratio)


def token_keys(group_ids: Sequence[int], indices: Sequence[int], lengths: Sequence[int]) -> Keys:
    """
    Pseudo-random key of each token, a function of its group, trajectory and position only.

    Args:
        group_ids: [S] group of each trajectory.
        indices: [S] index of the trajectory within its group.
        lengths: [S] tokens of the trajectory.

    Returns:
        [N], trajectories end to end. A step of a million tokens has two equal keys with probability 10^-7.
    """
    trajectories = _mixed(_mixed(np.array(group_ids, np.int64).view(np.uint64)) ^ np.array(indices, np.uint64))
    positions = np.concatenate([np.empty(0, np.uint64), *(np.arange(length, dtype=np.uint64) for length in lengths)])
    return _mixed(np.repeat(trajectories, lengths) ^ positions).view(np.int64)


def _covariance(step: StepTokens) -> Floats:
    """[N] covariance. Exact sums do not depend on the order."""
    number = max(len(step.keys), 1)
    mean_advantage, mean_logprob = (fsum(column.tolist()) / number for column in (step.advantages, step.logprobs))
    return (step.advantages - mean_advantage) * (step.logprobs - mean_logprob)


def _picked(ranked: NDArray[np.intp], number: int, share: float) -> Bools:
    """[N] mask of the first ``share * number`` of ``ranked``, at least one."""
    is_picked = np.zeros(number, np.bool_)
    is_picked[ranked[: max(int(share * number), 1)]] = True
    return is_picked


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """
    Pseudo-random permutation of the 64-bit numbers.

    Source:
        Steele et al. 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
    """
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


# ── tokens ────────────────────────────────────────────────────────────────────────────────────

MAX_LOG_RATIO = 20.0
"""A ratio beyond e^20 indicates an error and must not outweigh all other tokens."""
FLOAT32_LOG_RATIO = 80.0
"""Bound for losses that define none: e^80 times an advantage is finite in float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """
    N completion tokens of S trajectories, end to end, without the tokens of tools and rejected tokens.

    Raises:
        AsyncrlError: The tensors differ in shape, or are not as long as the sequences.
    """

    logprobs: Tensor
    """[N] under the policy in training, nats. Carries the gradient."""
    old_logprobs: Tensor
    """[N] under the denominator of the ratio: the policy that sampled, or the one the step begins with; nats."""
    advantages: Tensor
    sequences: Ragged
    is_selected: Tensor | None = None
    """[N] bool, tokens selected over the whole step; None unless the loss has a selection."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("logprobs", "old_logprobs", "advantages", "is_selected")}
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items() if tensor is not None}
        expected = tuple(self.sequences.index.shape)
        if any(shape != expected for shape in shapes.values()):
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise AsyncrlError(f"tokens: expected tensors of shape {expected}, one number per token, got {found}")

    def log_ratio(self, bound: float = MAX_LOG_RATIO) -> Tensor:
        """[N] ``logprobs - old_logprobs``, clamped to ``±bound``; the gradient is zero where the clamp applies."""
        return (self.logprobs - self.old_logprobs).clamp(-bound, bound)

    @property
    def selected(self) -> Tensor:
        """``is_selected`` for a loss that has a selection; raises `AsyncrlError` if it is None."""
        if self.is_selected is None:
            raise AsyncrlError("tokens: this loss reads is_selected; call its `select` on the step first")
        return self.is_selected


class PolicyLoss(NamedTuple):
    """Losses of N tokens, and metrics."""

    losses: Tensor
    """[N], to be weighted and summed. Carries the gradient."""
    metrics: Mapping[str, Tensor] = {}
    """[N] each, number or bool, to be averaged over tokens. No gradient."""


LossFunction = Callable[..., PolicyLoss]
"""``loss(tokens, *, settings)``: keyword arguments are named like the settings of ``[algorithm]`` they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss, ready to be called."""

    function: LossFunction
    settings: Mapping[str, Any]
    """Keyword arguments of the loss by name: default, or `asyncrl.plug_in.REQUIRED`."""
    entry: LossEntry
    select: Selection | None = None
    """Selects tokens over the whole step, before updates; the loss reads them as ``is_selected``."""
