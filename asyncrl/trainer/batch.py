"""
Trajectories as the trainer sees them, and laid end to end as the model reads them.

Shapes: S trajectories, W tokens of them all, N completion tokens of them all. There is no padding anywhere: sequences
share one row, and attention keeps them apart (`asyncrl.trainer.packed_attention`).

    input_ids      p p p c c c p c c c        p prompt, c completion
    position_ids   0 1 2 3 4 5 0 1 2 3
    positions          ▲ ▲ ▲   ▲ ▲ ▲          the state at a position predicts the token after it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import AsyncrlError
from asyncrl.messages import Span


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One trajectory and its reward. Arrays are borrowed."""

    group_id: int
    prompt_ids: NDArray[np.int32]
    """[L], at least one."""
    completion_ids: NDArray[np.int32]
    """[T]."""
    behavior_logprobs: NDArray[np.float32]
    """[T] under the policy that sampled, nats."""
    reward: float
    spans: Sequence[Span] = ()
    """Who wrote which completion tokens, in order; empty if that is not known."""
    index: int = 0
    """Which of its group's trajectories."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the verdict."""

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) or len(self.completion_ids) != len(self.behavior_logprobs):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} does not hold together: {len(self.prompt_ids)} prompt tokens "
                f"(expected at least 1), {len(self.completion_ids)} completion tokens, but "
                f"{len(self.behavior_logprobs)} behavior_logprobs (expected as many)"
            )

    @property
    def num_tokens(self) -> int:
        """Prompt and completion: what the model reads."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """What a model needs for one forward and backward pass."""

    input_ids: Tensor
    """[1, W] int64."""
    position_ids: Tensor
    """[1, W] int64, from 0 in each sequence."""
    positions: Tensor
    """[N] int64 into the W states: those that predict the completion tokens."""
    token_ids: Tensor
    """[N] int64, the completion tokens."""
    sequence_lengths: Sequence[int]
    """Tokens of each sequence in the row; W together."""
    lengths: Sequence[int]
    """[S] completion tokens of each trajectory; N together."""


def collate(samples: Sequence[TrainingSample], *, device: torch.device) -> MicroBatch:
    """
    Lay trajectories end to end.

    Args:
        samples: S trajectories. None of them is a row of one token and N = 0: a rank that has run out of trajectories
            takes part with it in what the others compute.
        device: Where the tensors go.
    """
    rows = [np.concatenate((sample.prompt_ids, sample.completion_ids)) for sample in samples] or [np.zeros(1, np.int64)]
    lengths = [len(sample.completion_ids) for sample in samples]
    sequence_lengths = [len(row) for row in rows]
    ends = np.cumsum(sequence_lengths)
    # The last state of a sequence predicts nothing that was written.
    positions = [np.arange(end - length, end) - 1 for end, length in zip(ends, lengths, strict=False)]

    def tensor(parts: Sequence[NDArray[np.integer]]) -> Tensor:
        return torch.from_numpy(np.concatenate((np.zeros(0, np.int64), *parts))).to(device)

    return MicroBatch(
        input_ids=tensor(rows)[None],
        position_ids=tensor([np.arange(length) for length in sequence_lengths])[None],
        positions=tensor(positions),
        token_ids=tensor([sample.completion_ids for sample in samples]),
        sequence_lengths=sequence_lengths,
        lengths=lengths,
    )
