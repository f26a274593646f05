"""
Who sees whom in a row of tokens: trajectories lie end to end, and those of one prompt share it.

    row        p p p q q q q │ a a b b b c c c         prompts p and q; a and b go on from p, c from q
    pieces     └─0─┘ └──1──┘   └2┘ └─3─┘ └─4─┘

    piece 3 sees    p p p b b b                        what it goes on from, and itself up to each token

Attention wants the keys of a piece side by side, so those of a prompt are repeated for each piece that goes on from it;
all other work is done once for a prompt. Made once for a row, and used by every layer.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Piece(NamedTuple):
    """Tokens that lie together."""

    length: int
    """At least one."""
    after: int | None = None
    """Number of the piece it goes on from, which goes on from none itself; None: nothing is before it."""


class Run:
    """
    Neighbours of one length, whose attention is one batch: B pieces of T tokens, after prefixes of at most L.

    Shorter prefixes are padded on the left, so that what a token sees of its own piece is at the same place in each.
    """

    def __init__(self, length: int, prefixes: Sequence[int], device: torch.device) -> None:
        self.length = length
        """T."""
        self.prefixes = prefixes
        """[B] tokens before each piece."""
        self.longest = max(prefixes)
        """L."""
        self._device = device
        self._masks: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """B."""
        return len(self.prefixes)

    @property
    def num_tokens(self) -> int:
        """B T."""
        return len(self) * self.length

    @property
    def num_keys(self) -> int:
        """B (L + T)."""
        return len(self) * (self.longest + self.length)

    def mask(self, window: int | None) -> Tensor | None:
        """
        [B or 1, 1, T, L + T] bool, True where a token sees a key; None for what is no more than causal.

        Args:
            window: Keys a token sees, itself included; None is all before it.
        """
        reach = window or self.longest + self.length
        if not self.longest and reach >= self.length:
            return None
        if reach not in self._masks:
            self._masks[reach] = self._mask(reach)
        return self._masks[reach]

    def _mask(self, reach: int) -> Tensor:
        key = torch.arange(self.longest + self.length, device=self._device)
        query = key[self.longest :, None]
        sees = (key <= query) & (key > query - reach)
        if min(self.prefixes) == self.longest:
            return sees[None, None]
        padding = torch.tensor([self.longest - prefix for prefix in self.prefixes], device=self._device)
        return (sees & (key >= padding[:, None, None]))[:, None]


class Row:
    """
    A row of W tokens.

    Args:
        pieces: In the order they lie in. Neighbours that are alike in length, and in whether they go on from another,
            are computed together.
        device: Where its tensors are.
    """

    def __init__(self, pieces: Sequence[Piece], device: torch.device) -> None:
        self._device = device
        starts = [0, *accumulate(piece.length for piece in pieces)]
        self._spans = [range(start, end) for start, end in pairwise(starts)]
        self._before = [range(0) if piece.after is None else self._spans[piece.after] for piece in pieces]

    @cached_property
    def runs(self) -> list[Run]:
        """Of neighbours that can be computed together."""
        alike = groupby(zip(self._spans, self._before, strict=True), key=lambda piece: (len(piece[0]), not piece[1]))
        return [Run(length, [len(before) for _, before in run], self._device) for (length, _), run in alike]

    @cached_property
    def run_keys(self) -> Tensor:
        """[Σ B (L + T)] int64 places of the keys of all runs; padding repeats one that is not seen."""
        paddings = [run.longest - prefix for run in self.runs for prefix in run.prefixes]
        return self._places(paddings)

    @cached_property
    def keys(self) -> Tensor:
        """[K] int64 places of what each piece sees, piece after piece."""
        return self._places([0] * len(self._spans))

    @cached_property
    def ends(self) -> Tensor:
        """[P + 1] int32 where pieces begin and end, as kernels take it."""
        return self._ends(map(len, self._spans))

    @cached_property
    def key_ends(self) -> Tensor:
        """[P + 1] int32 where what each piece sees begins and ends in `keys`."""
        return self._ends(self._seen)

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest piece, and most keys that one sees."""
        return max(map(len, self._spans)), max(self._seen)

    @property
    def _seen(self) -> list[int]:
        return [len(before) + len(span) for before, span in zip(self._before, self._spans, strict=True)]

    def _places(self, paddings: Sequence[int]) -> Tensor:
        parts: list[NDArray[np.int64]] = []
        for padding, before, span in zip(paddings, self._before, self._spans, strict=True):
            parts += (
                np.repeat(span.start, padding),
                np.arange(before.start, before.stop),
                np.arange(span.start, span.stop),
            )
        return torch.from_numpy(np.concatenate(parts, dtype=np.int64)).to(self._device)

    def _ends(self, lengths: Iterable[int]) -> Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self._device)
