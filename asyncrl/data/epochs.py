"""
Rows in the order in which they are asked, epoch after epoch.

    turn   0  1  2  3  4 │ 5  6  7  8  9 │ 10 ...
    epoch  0             │ 1             │  2
    row    3  0  4  1  2 │ 2  1  4  0  3 │  ...

In each epoch every row comes once. The order is a function of the seed and the epoch alone.
"""

import random
from collections.abc import Sequence


def permutation(size: int, seed: int, epoch: int, stream: int = 0) -> list[int]:
    """
    The order of ``size`` rows in one epoch. The same on every machine and Python version, which resuming relies on.

    Fisher-Yates from the last place down, fed by ``Random(...).random()``: Python promises that method's sequence for
    ever, but not that of ``shuffle``.

    Args:
        stream: Tells those apart that are shuffled with one seed, each by itself.
    """
    rng = random.Random(f"{seed}/{epoch}/{stream}" if stream else f"{seed}/{epoch}")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        pick = int(rng.random() * (last + 1))
        order[last], order[pick] = order[pick], order[last]
    return order


class Epochs:
    """
    An endless order of some rows.

    Args:
        rows: Their numbers, at least one.
        seed: With the epoch, decides the order; None keeps the order of ``rows``.
        stream: As for `permutation`.
    """

    def __init__(self, rows: Sequence[int], seed: int | None, stream: int = 0) -> None:
        self._rows = rows
        self._seed = seed
        self._stream = stream
        self._epoch = -1
        self._order: Sequence[int] = []

    def __len__(self) -> int:
        """Rows of one epoch."""
        return len(self._rows)

    def at(self, turn: int) -> tuple[int, int]:
        """The epoch and the row of ``turn``, counted from 0."""
        epoch, place = divmod(turn, len(self._rows))
        return epoch, self._rows[place if self._seed is None else self._permutation(epoch, self._seed)[place]]

    def _permutation(self, epoch: int, seed: int) -> Sequence[int]:
        """The one asked for last is kept, because epochs are asked in order."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self._rows), seed, epoch, self._stream)
        return self._order
