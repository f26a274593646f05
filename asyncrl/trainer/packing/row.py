"""
Where the tokens of each sequence lie in a row, in which sequences that begin alike share their beginning.

    row         p p p a a b b b q q c c       prompts p and q; a and b go on from p, c from q
    places      0 1 2 3 4                     of each sequence's tokens, shorter sequences first
                0 1 2     5 6 7
                                8 9 10 11

What concerns a token alone is computed once for each place. Attention takes the sequences whole, as if they shared
nothing (`places`), and of what it says of a place several times one is kept (`firsts`).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Row:
    """
    A row of W tokens and S sequences. Made once for a micro-batch, and used by every layer.

    Args:
        sequences: Places of each one's tokens, in its order. Every place from 0 to W - 1 is in one of them, and what is
            before it is the same in all of them.
        device: Where its tensors are.
    """

    def __init__(self, sequences: Sequence[NDArray[np.int64]], device: torch.device) -> None:
        ordered = sorted(sequences, key=len)
        self._device = device
        self._places = np.concatenate(ordered)
        self.lengths = [len(sequence) for sequence in ordered]
        """[S] tokens of each sequence, those of one length side by side."""

    @cached_property
    def places(self) -> Tensor:
        """[K] int64 of all sequences, end to end."""
        return torch.from_numpy(self._places).to(self._device)

    @cached_property
    def firsts(self) -> Tensor:
        """[W] int64 where each place is first in `places`."""
        _, firsts = np.unique(self._places, return_index=True)
        return torch.from_numpy(firsts).to(self._device)

    @cached_property
    def ends(self) -> Tensor:
        """[S + 1] int32 where sequences begin and end in `places`."""
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self._device)
