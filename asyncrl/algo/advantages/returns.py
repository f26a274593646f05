"""Discounted returns."""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.outcomes import Floats


def discounted(gains: Sequence[Floats], discount: float) -> list[Floats]:
    """
    [T] sums of each token's reward and all later ones, discounted, for each trajectory.

        G_t = g_t + discount G_{t+1}

    All trajectories are processed together from their last tokens to their first, so the number of Python iterations
    is the length of the longest trajectory and not the number of tokens.

    Args:
        gains: [T] rewards or temporal differences of each trajectory.
        discount: Factor per token.
    """
    lengths = np.array([len(part) for part in gains], dtype=np.int64)
    flat = np.concatenate([np.zeros(0), *gains])
    longest_first = np.argsort(-lengths, kind="stable")
    last = lengths.cumsum()[longest_first] - 1
    num_longer = len(gains) - np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), side="right")
    running = np.zeros(len(gains))
    for step, num in enumerate(num_longer):  # num trajectories have more than `step` tokens
        places = last[:num] - step
        running = flat[places] + discount * running[:num]
        flat[places] = running
    return np.split(flat, lengths.cumsum()[:-1]) if len(gains) else []
