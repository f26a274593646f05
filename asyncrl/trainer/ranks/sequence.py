"""
Ranks that share each packed row: every one computes a slice of its positions, and attention for a part of the heads.

    rank 0    positions 0 1, heads a b c d ─┐              ┌─ positions 0 1 2 3, heads a b     attention over the row
                                            ├─ all-to-all ─┤
    rank 1    positions 2 3, heads a b c d ─┘              └─ positions 0 1 2 3, heads c d     and all-to-all back

Activations and logits of a rank are those of its slice. The loss needs numbers of whole trajectories: each rank
computes that of the whole row from one number per token, and its gradient of the tokens of its own slice.

Source:
    Jacobs et al. 2023, arXiv:2309.14509 (DeepSpeed Ulysses).
"""

from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class SequenceGroup:
    """
    One rank's view of the adjacent ranks that share a row; by default, a rank that shares it with none.

    Args:
        size: Number of ranks.
        index: Place of this rank among them.
        group: Process group of these ranks; None if there is one alone, or if tensors have no memory (``meta``).
    """

    def __init__(self, size: int = 1, index: int = 0, group: dist.ProcessGroup | None = None) -> None:
        self.size = size
        self.index = index
        self.group = group

    @property
    def is_first(self) -> bool:
        """True for the rank that reports what all ranks of the group compute alike."""
        return self.index == 0

    def own(self, width: int) -> slice:
        """Positions of this rank in a row of ``width``, a multiple of `size`."""
        part = width // self.size
        return slice(self.index * part, (self.index + 1) * part)

    def to_heads(self, part: Tensor) -> Tensor:
        """
        From all heads at this rank's positions, [1, heads, W / size, D], to its part of the heads over the row,
        [1, heads / size, W, D]. Collective, and so is the gradient.

        Heads of keys and values that the ranks do not divide are repeated first, each for its own queries.
        """
        if repeats := self.size // gcd(part.shape[1], self.size) - 1:
            part = part.repeat_interleave(repeats + 1, 1)
        return self._turn(part)

    def to_positions(self, out: Tensor) -> Tensor:
        """
        From this rank's heads over the row, [1, W, heads / size, D], to all heads at its positions,
        [1, W / size, heads, D]. Collective, and so is the gradient.
        """
        return self._turn(out)

    def gather(self, own: Tensor, places: Tensor, number: int) -> Tensor:
        """
        Numbers of all N tokens from those of each rank's tokens, the same on every rank of the group. Collective.

        Carries the gradient of a loss that every rank computes alike: a rank keeps that of its own tokens.

        Args:
            own: [n] numbers of this rank's tokens.
            places: [n] indices of its tokens among all.
            number: N; each token is of one rank.
        """
        if self.size == 1:
            return own
        whole: Tensor = _Gather.apply(own, places, number, self.group)  # type: ignore[no-untyped-call]
        return whole

    def exchange(self, pieces: Tensor) -> Tensor:
        """All-to-all of [size, ...], a piece for each rank. Returns the same, a piece from each."""
        received: Tensor = _Exchange.apply(pieces, self.group)  # type: ignore[no-untyped-call]
        return received

    def _turn(self, part: Tensor) -> Tensor:
        """[1, A, B, D] to [1, A / size, size · B, D]."""
        if self.size == 1:
            return part
        received = self.exchange(part.reshape(self.size, -1, *part.shape[2:]))
        return received.transpose(0, 1).flatten(1, 2)[None]


ALONE = SequenceGroup()


class _Exchange(torch.autograd.Function):
    """[size, ...]: piece i goes to rank i, and one comes from each. The gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _exchanged(pieces, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grad, ctx.group), None


def _exchanged(pieces: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    pieces = pieces.contiguous()
    received = torch.empty_like(pieces)
    if not pieces.is_meta:
        dist.all_to_all_single(received, pieces, group=group)
    return received


class _Gather(torch.autograd.Function):
    """[n] of each rank to [N]; the gradient takes this rank's tokens, because all ranks have the same one."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, places: Tensor, number: int, group: dist.ProcessGroup | None) -> Tensor:
        ctx.save_for_backward(places)
        whole = own.new_zeros(number).index_copy_(0, places, own)
        if number:
            dist.all_reduce(whole, group=group)  # zeros and one number for each token
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grad[places], None, None, None
