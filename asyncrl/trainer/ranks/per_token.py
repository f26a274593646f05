"""
Numbers for every token of a step: each rank computes those of its trajectories, and all get all.

    rank 0   logprobs of 0, 3, 4 ─┐
                                  ├─ gather ─▶ [S] arrays of T on every rank, in the order of the step
    rank 1   logprobs of 1, 2    ─┘

They are few: 4 bytes a token and name. With them what concerns the whole step (whitening, baselines by position, means
of weights) is computed by everybody alike, whatever was cut how.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.trainer.ranks.ranks import Ranks

Column = list[NDArray[np.float64]]
"""[T] of each trajectory of a step."""


def shared(
    own: Mapping[str, Mapping[int, NDArray[np.float32]]],
    *,
    lengths: Sequence[int],
    owner: Sequence[int],
    ranks: Ranks,
) -> dict[str, Column]:
    """
    Everybody's numbers. Collective.

    Args:
        own: By name and place: [T] of every trajectory this rank owns.
        lengths: [S] T of each.
        owner: [S] rank of each.
    """
    places = [[place for place in range(len(owner)) if owner[place] == rank] for rank in range(ranks.size)]
    names = sorted(own)
    said = b"".join(own[name][place].astype("<f4").tobytes() for name in names for place in places[ranks.rank])
    columns: dict[str, Column] = {name: [np.empty(0)] * len(owner) for name in names}
    for heard, theirs in zip(ranks.gather(said), places, strict=True):
        numbers, start = np.frombuffer(heard, "<f4"), 0
        for name in names:
            for place in theirs:
                columns[name][place] = numbers[start : start + lengths[place]].astype(np.float64)
                start += lengths[place]
    return columns
