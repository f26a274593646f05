"""
Row of tokens in which sequences with the same prompt share it.

    row         p p p a a b b b q q c c       prompts p and q; completions a and b of p, c of q
    indices     0 1 2 3 4                     row indices of each sequence's tokens, shorter sequences first
                0 1 2     5 6 7
                                8 9 10 11

Operations on single tokens run once per token of the row. Attention gathers complete sequences (`Row.sequences`) and
takes one result per token of the row from them (`Row.tokens`).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from asyncrl.trainer.ranks.ranks import ALONE, SequenceGroup


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
        self._num_tokens = int(self._indices.max()) + 1
        self.lengths = [len(sequence) for sequence in ordered]
        """[S] tokens of each sequence, in ascending order."""

    @cached_property
    def sequences(self) -> "Gather":
        """Takes the K tokens of all sequences, end to end, from the W of the row."""
        return Gather(self._indices, self._num_tokens, self._device)

    @cached_property
    def tokens(self) -> "Gather":
        """Takes the W tokens of the row from the K of the sequences: the first occurrence of each."""
        _, firsts = np.unique(self._indices, return_index=True)
        return Gather(firsts, len(self._indices), self._device)

    @cached_property
    def ends(self) -> Tensor:
        """[S + 1] int32 boundaries of the sequences in `indices`, starting with 0."""
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self._device)


class Gather:
    """
    Takes tokens of a tensor by index. Gradients of one that is taken several times are added in the order of places.

        indices     a b a c a       first places     a b . c .      their gradients are copied
                                    second, third    . . a . a      each is a sum over distinct tokens

    No two additions of a round meet, so the sums are the same each time, and no GPU has to sort the indices for each
    gradient, as it does for those of an embedding. A CPU adds these in one pass.

    Args:
        indices: [K] of N tokens, on the host.
    """

    def __init__(self, indices: NDArray[np.int64], num_tokens: int, device: torch.device) -> None:
        def on_device(values: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        self.indices = on_device(indices)
        """[K] int64."""
        order = np.argsort(indices, kind="stable")
        tokens, starts, counts = np.unique(indices[order], return_index=True, return_counts=True)
        self._first = on_device(order[starts])
        self._tokens = None if len(tokens) == num_tokens else on_device(tokens)
        self._num_tokens = num_tokens
        repeated = np.flatnonzero(counts > 1)
        self._repeated = on_device(tokens[repeated]) if len(repeated) else None
        self._later = []
        """Further rounds: which of the repeated tokens each has, and their places."""
        for number in range(1, counts.max(initial=0)):
            has_more = np.flatnonzero(counts[repeated] > number)
            self._later.append((on_device(has_more), on_device(order[starts[repeated[has_more]] + number])))

    def __call__(self, part: Tensor) -> Tensor:
        """[K, ...] tokens of ``part``, [N, ...]."""
        flat = part.flatten(1)
        if flat.device.type == "cpu":
            return F.embedding(self.indices, flat).view(-1, *part.shape[1:])
        taken: Tensor = _Taken.apply(flat, self)  # type: ignore[no-untyped-call]
        return taken.view(-1, *part.shape[1:])

    def summed(self, gradient: Tensor) -> Tensor:
        """Gradients [N, F] of all tokens, from those of the places, [K, F]; sums are computed in float32."""
        first = gradient.index_select(0, self._first)
        if self._tokens is None:
            out = first
        else:
            out = gradient.new_zeros(self._num_tokens, gradient.shape[1])
            out.index_copy_(0, self._tokens, first)
        if self._repeated is not None:
            total = out.index_select(0, self._repeated).float()
            for has_more, places in self._later:
                total.index_add_(0, has_more, gradient.index_select(0, places).float())
            out.index_copy_(0, self._repeated, total.to(out.dtype))
        return out


class _Taken(Function):
    """Forward and backward pass of a `Gather`."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, gather: Gather) -> Tensor:
        ctx.gather = gather
        return part.index_select(0, gather.indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.gather.summed(gradient), None
