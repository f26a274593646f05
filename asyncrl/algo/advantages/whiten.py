"""Whitening of the numbers of all tokens of a step to mean 0 and variance 1."""

import numpy as np

from asyncrl.algo.outcomes import Advantages

VARIANCE_EPSILON = 1e-8
"""Added to the variance, so that a step of nearly equal numbers does not explode."""


def whitened(values: Advantages) -> Advantages:
    """
    Subtract the mean over all tokens of the step and divide by their standard deviation.

        (x - mean(x)) / sqrt(var(x) + 1e-8),    var with N - 1 in the denominator

    Args:
        values: [T] for each trajectory of the step. If all are equal, and so of one token or none, the result is
            exactly zero.
    """
    flat = np.concatenate([np.zeros(0), *values])
    if (flat == flat[:1]).all():  # the mean of equal floats may be off by one bit, and zero must be zero
        return [np.zeros(len(part)) for part in values]
    mean, scale = flat.mean(), 1.0 / np.sqrt(flat.var(ddof=1) + VARIANCE_EPSILON)
    return [(part - mean) * scale for part in values]
