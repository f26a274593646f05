"""Whitening of the numbers of all tokens of a step to mean 0 and variance 1."""

import numpy as np

from asyncrl.algo.outcomes import Advantages
from asyncrl.errors import AsyncrlError

VARIANCE_EPSILON = 1e-8
"""Added to the variance, so that a step of nearly equal numbers does not explode."""


def whitened(values: Advantages, *, name: str) -> Advantages:
    """
    Subtract the mean over all tokens of the step and divide by their standard deviation.

        (x - mean(x)) / sqrt(var(x) + 1e-8),    var with N - 1 in the denominator

    Args:
        values: [T] for each trajectory of the step. If all are equal, the result is exactly zero.
        name: Name of the estimator, for the error message.

    Raises:
        AsyncrlError: The step has fewer than two tokens.
    """
    flat = np.concatenate([np.zeros(0), *values])
    if len(flat) < 2:
        raise AsyncrlError(
            f"{name} compares the tokens of a step with each other, but this one has {len(flat)}, expected at least 2; "
            f"let a step have more trajectories, or use an estimator that compares rewards, such as 'grpo'"
        )
    if (flat == flat[0]).all():  # the mean of equal floats may be off by one bit, and zero must be zero
        return [np.zeros(len(part)) for part in values]
    mean, scale = flat.mean(), 1.0 / np.sqrt(flat.var(ddof=1) + VARIANCE_EPSILON)
    return [(part - mean) * scale for part in values]
