"""
Order of rows in a run, epoch after epoch.

    position  0  1  2  3  4 │ 5  6  7  8  9 │ 10 ...
    epoch     0             │ 1             │  2
    row       3  0  4  1  2 │ 2  1  4  0  3 │  ...

Every row comes once per epoch. The order is a function of the seed and the epoch alone.
"""

import random
from collections.abc import Sequence


def permutation(size: int, seed: int, epoch: int, stream: int = 0) -> list[int]:
    """
    Order of ``size`` rows in one epoch. The same on every machine and Python version, which resuming relies on.

    Fisher-Yates from the last place down, with ``Random(...).random()``: Python guarantees the sequence of that method
    across versions, but not that of ``shuffle``.

    Args:
        stream: Gives independent orders for the same seed.
    """
    rng = random.Random(f"{seed}/{epoch}/{stream}" if stream else f"{seed}/{epoch}")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        pick = int(rng.random() * (last + 1))
        order[last], order[pick] = order[pick], order[last]
    return order


class Epochs:
    """
    Endless order of some rows.

    Args:
        rows: Row numbers, at least one.
        seed: None keeps the order of ``rows`` in every epoch.
        stream: As in `permutation`.
    """

    def __init__(self, rows: Sequence[int], seed: int | None, stream: int = 0) -> None:
        self._rows = rows
        self._seed = seed
        self._stream = stream
        self._epoch = -1
        self._order: Sequence[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Sequence[int]:
        return self._rows

    def at(self, position: int) -> tuple[int, int]:
        """Epoch and row at a position, counted from 0."""
        epoch, place = divmod(position, len(self._rows))
        return epoch, self._rows[place if self._seed is None else self._permutation(epoch, self._seed)[place]]

    def _permutation(self, epoch: int, seed: int) -> Sequence[int]:
        if epoch != self._epoch:  # the last order is kept, because positions are requested in order
            self._epoch, self._order = epoch, permutation(len(self._rows), seed, epoch, self._stream)
        return self._order
