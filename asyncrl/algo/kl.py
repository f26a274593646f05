"""
Estimators of the KL divergence of the policy from a reference, one number for each sampled token.

With d = logprobs - ref_logprobs, and tokens sampled from the policy:

    k1  d              unbiased, may be negative
    abs |d|            never negative; a distance, not an estimate of the KL
    k2  d² / 2         slightly biased; its gradient is that of the true KL
    k3  e^-d + d - 1   unbiased, never negative; also called low_var_kl

A ``+`` at the end of a name (``k3+``) keeps the estimator's value and takes its gradient from k2.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from asyncrl.config.catalogue import kl_path
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
