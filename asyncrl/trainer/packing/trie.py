"""
Radix trie of sequences: equal beginnings have the same places.

    a b c d      a b ─┬─ c d          places  0 1 2 3
    a b e             └─ e                    0 1 4
    a b c d f              └─ f               0 1 2 3 5

The places of a sequence's new symbols follow those given out before, so the symbols of all sequences, each once, lie in
the order of their places. Pure numpy.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[Any]
"""[n] of any dtype that compares element by element, such as token ids."""


class Trie:
    """Places of the symbols of all sequences that were inserted."""

    def __init__(self) -> None:
        self.size = 0
        """Number of places given out."""
        self._roots: dict[Hashable, _Edge] = {}

    def insert(self, root: Hashable, symbols: Symbols) -> tuple[NDArray[np.int64], int]:
        """
        [n] places of a sequence, and the number of its symbols that had their places before.

        Args:
            root: What the sequence begins with; sequences with other roots share nothing.
            symbols: [n], borrowed.
        """
        edge = self._roots.setdefault(root, _Edge(symbols[:0], 0))
        runs, known = [np.zeros(0, np.int64)], 0
        while known < len(symbols) and (following := edge.following.get(symbols[known].tobytes())) is not None:
            common = _num_equal(following.symbols, symbols[known:])
            following.split(common)
            runs.append(np.arange(following.first, following.first + common))
            known += common
            edge = following
        if new := len(symbols) - known:
            edge.following[symbols[known].tobytes()] = _Edge(symbols[known:], self.size)
            runs.append(np.arange(self.size, self.size + new))
            self.size += new
        return np.concatenate(runs), known


@dataclass(slots=True)
class _Edge:
    """Symbols between two branchings, at adjacent places."""

    symbols: Symbols
    first: int
    """Place of the first symbol."""
    following: "dict[bytes, _Edge]" = field(default_factory=dict)
    """Edges after the last symbol, by their first."""

    def split(self, length: int) -> None:
        """Leave ``length`` symbols, at least 1, and move the others to an edge that follows."""
        if length < len(self.symbols):
            rest = _Edge(self.symbols[length:], self.first + length, self.following)
            self.symbols, self.following = self.symbols[:length], {rest.symbols[0].tobytes(): rest}


def _num_equal(first: Symbols, second: Symbols) -> int:
    """Symbols of the common beginning."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length
