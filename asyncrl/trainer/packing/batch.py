"""
Trajectories as the trainer sees them, and laid end to end as the model reads them.

Shapes: S trajectories, W tokens that are read, N completion tokens. There is no padding anywhere, and what trajectories
have in common, their prompt, is read once: attention sees to it that each is computed as if it were alone
(`asyncrl.trainer.packing.row`). Nothing follows a last token, so it is not read.

    input_ids      p p p c c d q c         p, q prompts; c, d completions
    position_ids   0 1 2 3 4 3 0 1
    positions          ▲ ▲ ▲ ▲ ▲ ▲         the state at a position predicts the token after it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import AsyncrlError
from asyncrl.messages import Span
from asyncrl.trainer.packing.row import Row


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTrajectory:
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


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """What a model needs for one forward and backward pass."""

    input_ids: Tensor
    """[1, W] int64."""
    position_ids: Tensor
    """[1, W] int64, from 0 in each trajectory."""
    positions: Tensor
    """[N] int64 into the W states: those that predict the completion tokens, trajectory after trajectory."""
    token_ids: Tensor
    """[N] int64, the completion tokens."""
    row: Row
    """Which of the W tokens make up each trajectory."""
    lengths: Sequence[int]
    """[S] completion tokens of each trajectory; N together."""


def collate(samples: Sequence[TrainingTrajectory], *, device: torch.device) -> MicroBatch:
    """
    Lay trajectories end to end; where one has the prompt of another, only what follows it.

    Args:
        samples: S trajectories. None of them is a row of one token and N = 0: a rank that has run out of trajectories
            takes part with it in what the others compute.
        device: Where the tensors go.
    """
    ids: list[NDArray[np.int32]] = []
    position_ids, sequences, positions = [], [], []
    prompts: dict[bytes, NDArray[np.int64]] = {}
    num_laid = 0

    def lay(part: NDArray[np.int32], position: int) -> NDArray[np.int64]:
        nonlocal num_laid
        ids.append(part)
        position_ids.append(position + np.arange(len(part)))
        num_laid += len(part)
        return np.arange(num_laid - len(part), num_laid)

    for sample in samples:
        length, key = len(sample.prompt_ids), sample.prompt_ids.tobytes()
        if key not in prompts:
            prompts[key] = lay(sample.prompt_ids, 0)
        places = np.concatenate((prompts[key], lay(sample.completion_ids[:-1], length)))
        sequences.append(places)
        positions.append(places[length - 1 :][: len(sample.completion_ids)])
    if not samples:
        sequences.append(lay(np.zeros(1, np.int32), 0))

    def tensor(parts: Sequence[NDArray[np.integer]]) -> Tensor:
        return torch.from_numpy(np.concatenate((np.zeros(0, np.int64), *parts))).to(device)

    return MicroBatch(
        input_ids=tensor(ids)[None],
        position_ids=tensor(position_ids)[None],
        positions=tensor(positions),
        token_ids=tensor([sample.completion_ids for sample in samples]),
        row=Row(sequences, device),
        lengths=[len(sample.completion_ids) for sample in samples],
    )
