"""
Whose turn it is, when files take turns by given ratios.

    ratios [3, 1]     turn   0  1  2  3 │ 4  5  6  7 │ ...
                      file   0  0  0  1 │ 0  0  0  1 │

After any number n of turns, file i with ratio r_i of R has had ⌊n r_i / R⌋ or ⌈n r_i / R⌉ of them: in no prefix is its
share off by a whole turn. It repeats after R turns, so that the whole cursor is the number of the turn.
"""

import math
from collections.abc import Sequence


class Interleave:
    """
    A fixed order of turns.

    Args:
        ratios: Of each file, at least 1. Only their proportion matters.
    """

    def __init__(self, ratios: Sequence[int]) -> None:
        divisor = math.gcd(*ratios)
        self._ratios = [ratio // divisor for ratio in ratios]
        self._cycle = _cycle(self._ratios)

    def at(self, turn: int) -> tuple[int, int]:
        """The file whose turn it is, and how many it has had before."""
        cycles, place = divmod(turn, len(self._cycle))
        file, before = self._cycle[place]
        return file, cycles * self._ratios[file] + before


def _cycle(ratios: Sequence[int]) -> list[tuple[int, int]]:
    """
    The file of each turn of one cycle, with how many it has had before.

    Of those that are behind their share the one goes first that would soonest be behind by a whole turn; the first of
    several.

    Source:
        Balinsky and Young 1975, "The quota method of apportionment": this choice keeps every share between its floor
        and its ceiling.
    """
    total = sum(ratios)
    had = [0] * len(ratios)
    cycle = []
    for turn in range(1, total + 1):
        behind = [file for file, ratio in enumerate(ratios) if had[file] * total < ratio * turn]
        file = min(behind, key=lambda file: (had[file] + 1) / ratios[file])
        cycle.append((file, had[file]))
        had[file] += 1
    return cycle
