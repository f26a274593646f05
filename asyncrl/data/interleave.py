"""
Interleaving of files by given ratios.

    ratios [3, 1]     position   0  1  2  3 │ 4  5  6  7 │ ...
                      file       0  0  0  1 │ 0  0  0  1 │

Of the first n positions, file i with ratio r_i of a total R has ⌊n r_i / R⌋ or ⌈n r_i / R⌉: in no prefix is its share
off by a whole position. The order repeats after R positions, so the whole cursor is the position.
"""

import math
from collections.abc import Sequence


class Interleave:
    """A fixed order of files; only the proportion of the ratios, each at least 1, matters."""

    def __init__(self, ratios: Sequence[int]) -> None:
        divisor = math.gcd(*ratios)
        self._ratios = [ratio // divisor for ratio in ratios]
        self._cycle = _cycle(self._ratios)

    def at(self, position: int) -> tuple[int, int]:
        """File at a position, and the number of earlier positions of that file."""
        cycles, place = divmod(position, len(self._cycle))
        file, before = self._cycle[place]
        return file, cycles * self._ratios[file] + before


def _cycle(ratios: Sequence[int]) -> list[tuple[int, int]]:
    """
    Return the file of each position of one cycle, with the number of its earlier positions.

    Of the files that are behind their share, the next is the one that would be behind by a whole position soonest; the
    first of several.

    Source:
        Balinsky and Young 1975, "The quota method of apportionment": this choice keeps every share between its floor
        and its ceiling.
    """
    total = sum(ratios)
    counts = [0] * len(ratios)
    cycle = []
    for position in range(1, total + 1):
        behind = [file for file, ratio in enumerate(ratios) if counts[file] * total < ratio * position]
        file = min(behind, key=lambda file: (counts[file] + 1) / ratios[file])
        cycle.append((file, counts[file]))
        counts[file] += 1
    return cycle
