"""
Trajectories with their tokens, and their packed form that a model reads.

Shapes: S trajectories, W tokens of the packed row, N completion tokens. There is no padding. Trajectories with the same
prompt share it in the row, and attention computes each as if it were alone (`asyncrl.trainer.packing.row`). The last
token of a trajectory predicts nothing and is not in the row.

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
    """One trajectory of L >= 1 prompt tokens and T completion tokens. Arrays are borrowed."""

    group_id: int
    prompt_ids: NDArray[np.int32]
    completion_ids: NDArray[np.int32]
    behavior_logprobs: NDArray[np.float32]
    """[T] under the policy that sampled, nats."""
    reward: float
    spans: Sequence[Span] = ()
    """Policy version of each run of completion tokens, in order; empty if unknown."""
    index: int = 0
    """Index within its group."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the verdict."""

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) or len(self.completion_ids) != len(self.behavior_logprobs):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} is inconsistent: {len(self.prompt_ids)} prompt tokens (expected "
                f"at least 1), {len(self.completion_ids)} completion tokens, but {len(self.behavior_logprobs)} "
                f"behavior_logprobs (expected as many)"
            )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """
    Model inputs of one forward and backward pass. Tensors are int64: `input_ids` and `position_ids` [1, W], others [N].
    """

    input_ids: Tensor
    position_ids: Tensor
    """Position in the trajectory, from 0."""
    positions: Tensor
    """Row indices of the states that predict the completion tokens, trajectory after trajectory."""
    token_ids: Tensor
    """Completion tokens."""
    row: Row
    lengths: Sequence[int]
    """[S] completion tokens of each trajectory; they sum to N."""


def collate(trajectories: Sequence[TrainingTrajectory], *, device: torch.device) -> MicroBatch:
    """
    Pack trajectories into one row, in which equal prompts appear once.

    No trajectories give a row of one token with N = 0, with which a rank takes part in the collectives of the others.
    """
    ids: list[NDArray[np.int32]] = []
    position_ids, sequences, positions = [], [], []
    prompts: dict[bytes, NDArray[np.int64]] = {}
    width = 0

    def append(part: NDArray[np.int32], position: int) -> NDArray[np.int64]:
        nonlocal width
        ids.append(part)
        position_ids.append(position + np.arange(len(part)))
        width += len(part)
        return np.arange(width - len(part), width)

    for trajectory in trajectories:
        length, key = len(trajectory.prompt_ids), trajectory.prompt_ids.tobytes()
        if key not in prompts:
            prompts[key] = append(trajectory.prompt_ids, 0)
        indices = np.concatenate((prompts[key], append(trajectory.completion_ids[:-1], length)))
        sequences.append(indices)
        positions.append(indices[length - 1 :][: len(trajectory.completion_ids)])
    if not trajectories:
        sequences.append(append(np.zeros(1, np.int32), 0))

    def tensor(parts: Sequence[NDArray[np.integer]]) -> Tensor:
        return torch.from_numpy(np.concatenate((np.zeros(0, np.int64), *parts))).to(device)

    return MicroBatch(
        input_ids=tensor(ids)[None],
        position_ids=tensor(position_ids)[None],
        positions=tensor(positions),
        token_ids=tensor([trajectory.completion_ids for trajectory in trajectories]),
        row=Row(sequences, device),
        lengths=[len(trajectory.completion_ids) for trajectory in trajectories],
    )
