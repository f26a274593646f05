"""Sequences of unlike length, laid end to end: sums and means of each, without padding."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Ragged:
    """
    Where S sequences of N tokens together begin and end. A sequence may be empty.

    Args:
        lengths: [S].
    """

    def __init__(self, lengths: Sequence[int], *, device: torch.device | None = None) -> None:
        self.lengths = torch.as_tensor(lengths, dtype=torch.int64, device=device)
        """[S] int64."""
        self.index = torch.repeat_interleave(torch.arange(len(lengths), device=device), self.lengths)
        """[N] int64, the sequence each token belongs to."""

    def __len__(self) -> int:
        return len(self.lengths)

    def sum(self, values: Tensor) -> Tensor:
        """[S] of [N]; 0 for an empty sequence. Carries the gradient."""
        return values.new_zeros(len(self)).index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """[S] of [N]; 0 for an empty sequence. Carries the gradient."""
        return self.sum(values) / self.lengths.clamp(min=1)

    def max(self, values: Tensor) -> Tensor:
        """[S] of [N]; -inf for an empty sequence."""
        lowest = values.new_full((len(self),), -torch.inf)
        return lowest.scatter_reduce(0, self.index, values, "amax")

    def spread(self, values: Tensor) -> Tensor:
        """[N] of [S]: each token gets its sequence's. Carries the gradient."""
        return values[self.index]
