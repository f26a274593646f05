"""
How far the policy is from a reference, estimated on sampled tokens: one number for each token.

With d = logprobs - ref_logprobs, and tokens sampled from the policy:

    k1  d              unbiased, of either sign
    k2  d² / 2         biased a little; its gradient is that of the true KL
    k3  e^-d + d - 1   unbiased, never negative; also called low_var_kl
"""

from collections.abc import Callable

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Clamp of the exponent in k3, so that float32 does not overflow."""
MAX_K3 = 10.0
"""Clamp of k3 itself: one absurd token must not outweigh the batch."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """
    The plain log-ratio. In a loss its expected gradient is zero: it is for watching, not for regularising.

    Args:
        logprobs: [N] under the policy being trained, nats.
        ref_logprobs: [N] under the reference, nats.

    Returns:
        [N].

    Source:
        Schulman 2020, "Approximating KL Divergence" (all three).
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio. Shapes as in `k1`."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """``e^-d + d - 1``, clamped; flat, without a gradient, where a clamp holds. Shapes as in `k1`."""
    log_ratio = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (log_ratio.expm1() - log_ratio).clamp(-MAX_K3, MAX_K3)


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "low_var_kl": k3}
"""By the name in ``algorithm.kl``."""
