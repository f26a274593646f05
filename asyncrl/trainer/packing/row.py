"""
Row of tokens in which sequences with the same prompt share it.

    row         p p p a a b b b q q c c       prompts p and q; completions a and b of p, c of q
    indices     0 1 2 3 4                     row indices of each sequence's tokens, shorter sequences first
                0 1 2     5 6 7
                                8 9 10 11

Operations on single tokens run once per token of the row. Attention gathers complete sequences (`indices`) and scatters
one result per token of the row back (`firsts`).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.trainer.ranks.sequence import ALONE, SequenceGroup


class Row:
    """
    Row of W tokens that holds S sequences of K tokens in total. Built once per micro-batch and used by every layer.

    Args:
        sequences: Row indices of each sequence's tokens, in order. Every index from 0 to W - 1 is in at least one
            sequence, and the tokens before it are the same in all sequences that contain it.
        group: Ranks that share the row.
    """

    def __init__(
        self, sequences: Sequence[NDArray[np.int64]], device: torch.device, group: SequenceGroup = ALONE
    ) -> None:
        self.group = group
        ordered = sorted(sequences, key=len)
        self._device = device
        self._indices = np.concatenate(ordered)
        self.lengths = [len(sequence) for sequence in ordered]
        """[S] tokens of each sequence, in ascending order."""

    @cached_property
    def indices(self) -> Tensor:
        """[K] int64 row indices of all sequences, end to end."""
        return torch.from_numpy(self._indices).to(self._device)

    @cached_property
    def firsts(self) -> Tensor:
        """[W] int64 first occurrence of each row index in `indices`."""
        _, firsts = np.unique(self._indices, return_index=True)
        return torch.from_numpy(firsts).to(self._device)

    @cached_property
    def ends(self) -> Tensor:
        """[S + 1] int32 boundaries of the sequences in `indices`, starting with 0."""
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self._device)
