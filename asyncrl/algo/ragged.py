"""Sequences of different length, end to end, with sums and means per sequence and no padding."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Ragged:
    """Boundaries of S sequences with N tokens in total, from their [S] ``lengths``. A sequence may be empty."""

    def __init__(self, lengths: Sequence[int], *, device: torch.device | None = None) -> None:
        self.lengths = torch.as_tensor(lengths, dtype=torch.int64, device=device)
        self.index = torch.repeat_interleave(torch.arange(len(lengths), device=device), self.lengths)
        """[N] int64, sequence of each token."""

    def __len__(self) -> int:
        return len(self.lengths)

    def sum(self, values: Tensor) -> Tensor:
        """[N] to [S]; 0 for an empty sequence. Carries the gradient."""
        return values.new_zeros(len(self)).index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """[N] to [S]; 0 for an empty sequence. Carries the gradient."""
        return self.sum(values) / self.lengths.clamp(min=1)

    def max(self, values: Tensor) -> Tensor:
        """[N] to [S]; -inf for an empty sequence."""
        lowest = values.new_full((len(self),), -torch.inf)
        return lowest.scatter_reduce(0, self.index, values, "amax")

    def spread(self, values: Tensor) -> Tensor:
        """[S] to [N]: each token gets the value of its sequence. Carries the gradient."""
        return values[self.index]
