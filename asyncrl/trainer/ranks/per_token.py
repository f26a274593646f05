"""
Numbers for every token of a step, shared between ranks: each rank computes those of its own trajectories.

    rank 0   log-probs of 0, 3, 4 ─┐
                                   ├─ all-gather ─▶ [S] arrays of [T] on every rank, in the order of the step
    rank 1   log-probs of 1, 2    ─┘

With 4 bytes per token and name, every rank can compute the same step-wide quantities (whitening, baselines by position,
means of weights), independent of how the step is cut.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.trainer.ranks.ranks import Ranks

PerToken = list[NDArray[np.float64]]
"""[T] of each trajectory of a step."""


def all_gather_per_token(
    own: Mapping[str, Mapping[int, NDArray[np.float32]]],
    *,
    lengths: Sequence[int],
    owners: Sequence[int],
    ranks: Ranks,
) -> dict[str, PerToken]:
    """
    Combine the numbers of all ranks. Collective.

    Args:
        own: [T] by name and place, for every trajectory of this rank. All ranks have the same names.
        lengths: [S] T of each trajectory.
    """
    places = [[place for place, owner in enumerate(owners) if owner == rank] for rank in range(ranks.size)]
    names = sorted(own)
    sent = b"".join(own[name][place].astype("<f4").tobytes() for name in names for place in places[ranks.rank])
    per_token: dict[str, PerToken] = {name: [np.empty(0)] * len(owners) for name in names}
    for received, theirs in zip(ranks.all_gather(sent), places, strict=True):
        numbers, start = np.frombuffer(received, "<f4"), 0
        for name in names:
            for place in theirs:
                per_token[name][place] = numbers[start : start + lengths[place]].astype(np.float64)
                start += lengths[place]
    return per_token
