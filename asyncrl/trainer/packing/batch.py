"""
Trajectories with their tokens, and their packed form that a model reads.

Shapes: S trajectories, W tokens of the packed row, N completion tokens. There is no padding. Trajectories with the same
prompt share it in the row, and attention computes each as if it were alone (`asyncrl.trainer.packing.row`). The last
token of a trajectory predicts nothing and is not in the row.

    input_ids      p p p c c d q c         p, q prompts; c, d completions
    position_ids   0 1 2 3 4 3 0 1
    positions          ▲ ▲ ▲ ▲ ▲ ▲         the state at a position predicts the token after it

Ranks that share the row (`SequenceGroup`) have a slice of its tokens each: the completion tokens that a rank scores are
those whose position is in its slice, wherever they are themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.sampling_mask import SamplingMask
from asyncrl.errors import AsyncrlError
from asyncrl.messages import Span
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.ranks.sequence import ALONE, SequenceGroup


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
    mask_counts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """[T] ids in the sampling mask of each token; empty leaves the whole vocabulary."""
    mask_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """The masks, token after token."""
    experts: NDArray[np.integer] | None = None
    """[L + T - 1, layers, K] experts of every token but the last; None lets the routers choose."""

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) or len(self.completion_ids) != len(self.behavior_logprobs):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} is inconsistent: {len(self.prompt_ids)} prompt tokens (expected "
                f"at least 1), {len(self.completion_ids)} completion tokens, but {len(self.behavior_logprobs)} "
                f"behavior_logprobs (expected as many)"
            )
        self._check_replayed(len(self.completion_ids))

    def _check_replayed(self, length: int) -> None:
        if len(self.mask_counts) not in (0, length) or self.mask_counts.sum() != len(self.mask_ids):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} has {len(self.mask_counts)} sampling masks of "
                f"{self.mask_counts.sum()} ids for {length} completion tokens, but {len(self.mask_ids)} mask_ids "
                f"(expected none, or a mask for each token)"
            )
        if self.experts is not None and len(self.experts) != (num_read := len(self.prompt_ids) + length - 1):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} has experts of {len(self.experts)} tokens, expected those of all "
                f"{num_read} but the last"
            )


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """
    Model inputs of one forward and backward pass. Tensors are int64: `input_ids` and `position_ids` [1, W], others [N].

    If ranks share the row, tensors are this rank's part of them: W and N are smaller.
    """

    input_ids: Tensor
    position_ids: Tensor
    """Position in the trajectory, from 0."""
    positions: Tensor
    """Row indices of the states that predict the completion tokens, trajectory after trajectory."""
    token_ids: Tensor
    """Completion tokens."""
    places: Tensor
    """Indices of these tokens among the completion tokens of all trajectories."""
    row: Row
    """The whole row."""
    lengths: Sequence[int]
    """[S] completion tokens of each trajectory."""
    mask: SamplingMask | None = None
    """Sampling masks of the N tokens; None if no trajectory has any."""
    routes: Tensor | None = None
    """[W, layers, K] experts of the row's tokens, uint8 or int16; None lets the routers choose."""

    @property
    def num_packed(self) -> int:
        """Tokens of the whole row."""
        return self.input_ids.numel() * self.row.group.size

    def gather(self, numbers: Tensor) -> Tensor:
        """Numbers of all completion tokens, from those of each rank; see `SequenceGroup.gather`. Collective."""
        return self.row.group.gather(numbers, self.places, sum(self.lengths))


def collate(
    trajectories: Sequence[TrainingTrajectory], *, device: torch.device, group: SequenceGroup = ALONE
) -> MicroBatch:
    """
    Pack trajectories into one row, in which equal prompts appear once, and take this rank's part of it.

    Prompts are equal if the experts that are recorded for them are; either all trajectories have experts, or none.

    The row is filled up with one more sequence until the ranks of ``group`` have equal parts of one token or more.
    Without trajectories that is all of it: N is 0, and a rank takes part in the collectives of the others.
    """
    ids: list[NDArray[np.int32]] = []
    position_ids, sequences, positions, experts = [], [], [], []
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
        if trajectory.experts is not None:
            key += trajectory.experts[:length].tobytes()
        if key not in prompts:
            prompts[key] = append(trajectory.prompt_ids, 0)
            experts.append(_experts(trajectory, slice(0, length)))
        experts.append(_experts(trajectory, slice(length, None)))
        indices = np.concatenate((prompts[key], append(trajectory.completion_ids[:-1], length)))
        sequences.append(indices)
        positions.append(indices[length - 1 :][: len(trajectory.completion_ids)])
    if filling := -width % group.size if width else group.size:
        sequences.append(append(np.zeros(filling, np.int32), 0))
    own = group.own(width)
    predicting = _joined(positions)
    places = np.flatnonzero((own.start <= predicting) & (predicting < own.stop))

    def tensor(numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(device)

    return MicroBatch(
        input_ids=tensor(_joined(ids)[own])[None],
        position_ids=tensor(_joined(position_ids)[own])[None],
        positions=tensor(predicting[places] - own.start),
        token_ids=tensor(_joined([trajectory.completion_ids for trajectory in trajectories])[places]),
        places=tensor(places),
        row=Row(sequences, device, group),
        lengths=[len(trajectory.completion_ids) for trajectory in trajectories],
        mask=_mask(trajectories, places, device),
        routes=_routes(experts, own, filling, device),
    )


def _routes(
    experts: Sequence[NDArray[np.integer] | None], own: slice, filling: int, device: torch.device
) -> Tensor | None:
    """[W, layers, K] experts of this rank's part of a row; its filling takes the first experts."""
    parts = [part for part in experts if part is not None]
    if not parts:
        return None
    _, layers, top_k = parts[0].shape
    parts.append(np.broadcast_to(np.arange(top_k, dtype=parts[0].dtype), (filling, layers, top_k)))
    return torch.from_numpy(np.concatenate(parts)[own]).to(device)


def _experts(trajectory: TrainingTrajectory, part: slice) -> NDArray[np.integer] | None:
    return None if trajectory.experts is None else trajectory.experts[part]


def _mask(
    trajectories: Sequence[TrainingTrajectory], places: NDArray[np.int64], device: torch.device
) -> SamplingMask | None:
    """Sampling masks of the tokens at ``places``, ascending; a trajectory without masks leaves the whole vocabulary."""
    if not any(len(trajectory.mask_ids) for trajectory in trajectories):
        return None
    counts = _joined([one.mask_counts if len(one.mask_ids) else 0 * one.completion_ids for one in trajectories])
    is_own = np.zeros(len(counts), np.bool_)
    is_own[places] = True
    ids = _joined([trajectory.mask_ids for trajectory in trajectories])[np.repeat(is_own, counts)]
    own = counts[places]
    ends = [0, *np.cumsum(own).tolist()]
    return SamplingMask(torch.from_numpy(own).to(device), torch.from_numpy(ids).to(device), ends)


def _joined(parts: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(0, np.int64), *parts))
