"""
Estimators of the KL divergence of the policy from a reference, one number for each sampled token, and the weight of a
KL in the reward.

With d = logprobs - ref_logprobs, and tokens sampled from the policy:

    k1  d              unbiased, may be negative
    abs |d|            never negative; a distance, not an estimate of the KL
    k2  d² / 2         slightly biased; its gradient is that of the true KL
    k3  e^-d + d - 1   unbiased, never negative; also called low_var_kl

A ``+`` at the end of a name (``k3+``) keeps the estimator's value and takes its gradient from k2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isnan

from torch import Tensor

from asyncrl.config.catalogue import kl_path
from asyncrl.errors import ConfigError
from asyncrl.plug_in import load_function

KlEstimator = Callable[[Tensor, Tensor], Tensor]
"""``kl(logprobs, ref_logprobs)``: [N] log-probs, under the policy being trained and the reference, to [N] nats."""

MAX_LOG_RATIO = 20.0
"""Clamp of the exponent in k3, so that float32 does not overflow."""
MAX_K3 = 10.0
"""Clamp of k3 itself, so that one extreme token does not outweigh the batch."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """
    The log-ratio. Its expected gradient is zero, so it is useful in rewards and metrics, not in a loss.

    Source:
        Schulman 2020, "Approximating KL Divergence" (k1, k2, k3).
    """
    return logprobs - ref_logprobs


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return (logprobs - ref_logprobs).abs()


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """``e^-d + d - 1``, clamped; the gradient is zero where a clamp applies."""
    log_ratio = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (log_ratio.expm1() - log_ratio).clamp(-MAX_K3, MAX_K3)


def resolve_kl(name: str) -> KlEstimator:
    """Load the estimator that ``algorithm.kl`` names; raises `ConfigError` if the name is unknown."""
    estimate = load_function(kl_path(name), setting="algorithm.kl")
    return partial(_straight_through, estimate) if name.endswith("+") else estimate


def _straight_through(estimate: KlEstimator, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Value of the estimate, gradient of k2."""
    slope = k2(logprobs, ref_logprobs)
    return slope - slope.detach() + estimate(logprobs, ref_logprobs).detach()


# ── kl controller ─────────────────────────────────────────────────────────────────────────────
# Weight of the KL that is subtracted from the reward: fixed, or adapted to reach a target KL.
#
#     KL of a step above target ──▶ weight up, by at most a fifth per `horizon` trajectories; below ──▶ down

MAX_ERROR = 0.2
"""Bound of the relative distance of the KL from its target."""


@dataclass(slots=True)
class KlController:
    """Holds the coefficient. ``coef`` is all the state that a checkpoint needs."""

    coef: float
    """Weight of the KL in the rewards of the next step."""
    target: float = 0.0
    """KL per token to reach, nats; 0 keeps the coefficient fixed."""
    horizon: int = 10_000
    """Trajectories over which the coefficient changes by at most a fifth."""

    def update(self, kl: float, num_trajectories: int) -> None:
        """
        Adapt the coefficient to the KL of a step.

            coef ← coef (1 + clip(kl / target - 1, ±0.2) num_trajectories / horizon)

        Args:
            kl: Mean over a trajectory's tokens, then over the step's trajectories, nats.

        Raises:
            ConfigError: The step is so large relative to the horizon that the coefficient could fall to zero or below.

        Source:
            Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2.
        """
        if not self.target:
            return
        share = num_trajectories / self.horizon
        if MAX_ERROR * share >= 1:
            raise ConfigError(
                f"algorithm.kl_horizon is {self.horizon}, but a step has {num_trajectories} trajectories and could "
                f"reduce the coefficient to 0; use more than {int(MAX_ERROR * num_trajectories)}"
            )
        if isnan(kl):
            return  # The coefficient would stay NaN.
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.coef *= 1 + error * share
