"""What is still to come, at each token."""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.outcomes import Floats


def discounted(gains: Sequence[Floats], discount: float) -> list[Floats]:
    """
    At each token, its gain and all later ones, which count the less the later they come.

        G_t = g_t + discount G_{t+1}

    All trajectories are walked at once, from their last tokens to their first, so that the number of steps in Python
    is the length of the longest and not the number of tokens.

    Args:
        gains: [T] of each trajectory.
        discount: 1 sums up, 0 looks no token ahead.

    Returns:
        [T] of each trajectory.
    """
    lengths = np.array([len(part) for part in gains], dtype=np.int64)
    flat = np.concatenate([np.zeros(0), *gains])
    longest_first = np.argsort(-lengths, kind="stable")
    last = lengths.cumsum()[longest_first] - 1
    num_longer = len(gains) - np.searchsorted(np.sort(lengths), np.arange(lengths.max(initial=0)), side="right")
    running = np.zeros(len(gains))
    for step, num in enumerate(num_longer):  # num trajectories have a token so far from their end
        places = last[:num] - step
        running = flat[places] + discount * running[:num]
        flat[places] = running
    return np.split(flat, lengths.cumsum()[:-1]) if len(gains) else []
