"""
How far the policy is from a reference, estimated on sampled tokens: one number for each token.

With d = logprobs - ref_logprobs, and tokens sampled from the policy:

    k1  d              unbiased, of either sign
    abs |d|            of one sign; a distance, not an estimate of the KL
    k2  d² / 2         biased a little; its gradient is that of the true KL
    k3  e^-d + d - 1   unbiased, never negative; also called low_var_kl

A ``+`` behind a name (``k3+``) keeps the estimator's value, and takes its gradient from k2.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint

KlEstimator = Callable[[Tensor, Tensor], Tensor]
"""``kl(logprobs, ref_logprobs)``: [N] of [N], nats."""

MAX_LOG_RATIO = 20.0
"""Clamp of the exponent in k3, so that float32 does not overflow."""
MAX_K3 = 10.0
"""Clamp of k3 itself: one absurd token must not outweigh the batch."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """
    The plain log-ratio. In a loss its expected gradient is zero: it is for rewards, and for watching.

    Args:
        logprobs: [N] under the policy being trained, nats.
        ref_logprobs: [N] under the reference, nats.

    Returns:
        [N].

    Source:
        Schulman 2020, "Approximating KL Divergence" (k1, k2, k3).
    """
    return logprobs - ref_logprobs


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The log-ratio's size. Shapes as in `k1`."""
    return (logprobs - ref_logprobs).abs()


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio. Shapes as in `k1`."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """``e^-d + d - 1``, clamped; flat, without a gradient, where a clamp holds. Shapes as in `k1`."""
    log_ratio = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (log_ratio.expm1() - log_ratio).clamp(-MAX_K3, MAX_K3)


KL_ESTIMATORS: dict[str, KlEstimator] = {
    "k1": k1,
    "kl": k1,
    "abs": absolute,
    "k2": k2,
    "mse": k2,
    "k3": k3,
    "low_var_kl": k3,
}
"""By the name in ``algorithm.kl``: ours, and verl's for the same. Each also with a ``+``: `resolve_kl`."""


def resolve_kl(name: str) -> KlEstimator:
    """
    The estimator that a configuration names.

    Raises:
        ConfigError: There is none of that name.
    """
    plain = name.removesuffix("+")
    if plain not in KL_ESTIMATORS:
        raise ConfigError(f"algorithm.kl is {name!r}: {hint(plain, KL_ESTIMATORS)} (any of them may end in '+')")
    estimate = KL_ESTIMATORS[plain]
    return partial(_straight_through, estimate) if name.endswith("+") else estimate


def _straight_through(estimate: KlEstimator, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Value of the estimate, gradient of k2."""
    slope = k2(logprobs, ref_logprobs)
    return slope - slope.detach() + estimate(logprobs, ref_logprobs).detach()
