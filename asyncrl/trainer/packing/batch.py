"""
Trajectories with their tokens, and their packed form that a model reads.

Shapes: S trajectories, W tokens of the packed row, N completion tokens. There is no padding. Trajectories with the same
prompt share it in the row, and attention computes each as if it were alone (`asyncrl.trainer.packing.row`). The last
token of a trajectory predicts nothing and is not in the row.

    input_ids      p p p c c d q c         p, q prompts; c, d completions
    position_ids   0 1 2 3 4 3 0 1
    positions          ▲ ▲ ▲ ▲ ▲ ▲         the state at a position predicts the token after it

With pictures a token has three positions, in time, height and width, and equal prompts have equal pictures too
(`asyncrl.trainer.packing.pictures`).

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
from asyncrl.errors import AsyncrlError, DataError
from asyncrl.messages import Span
from asyncrl.trainer.packing.pictures import Pictures, PictureTokens
from asyncrl.trainer.packing.pictures import TrainingImage as TrainingImage  # noqa: PLC0414  a part of trajectories
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.ranks.sequence import ALONE, SequenceGroup
from asyncrl.vision.processor import ImageProcessor


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
    images: Sequence[TrainingImage] = ()
    """Pictures, in the order of their tokens in ``prompt_ids``."""
    mask_counts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Number of ids in the sampling mask of each token, [T]; empty leaves the whole vocabulary."""
    mask_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Ids of all masks, mask after mask."""
    experts: NDArray[np.integer] | None = None
    """Experts of every token but the last, [L + T - 1, layers, K]; None lets the routers choose."""

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
    Model inputs of one forward and backward pass. Tensors are int64: `input_ids` [1, W], others [N].

    If ranks share the row, tensors are this rank's part of them: W and N are smaller.
    """

    input_ids: Tensor
    position_ids: Tensor
    """[1, W] position in the trajectory, from 0; [3, 1, W] in time, height and width if the row has pictures."""
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
    pictures: Pictures | None = None
    """Pictures of this rank's part; None if it has none."""
    mask: SamplingMask | None = None
    """Sampling masks of the N tokens; None if no trajectory has masks."""
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
    trajectories: Sequence[TrainingTrajectory],
    *,
    device: torch.device,
    group: SequenceGroup = ALONE,
    processor: ImageProcessor | None = None,
) -> MicroBatch:
    """
    Pack trajectories into one row, in which equal prompts appear once, and take this rank's part of it.

    Prompts are equal if the experts that are recorded for them are; either all trajectories have experts, or none.

    The row is filled up with one more sequence until the ranks of ``group`` have equal parts of one token or more.
    Without trajectories that is all of it: N is 0, and a rank takes part in the collectives of the others.

    Args:
        processor: Reads the pictures; None for a model that reads none.

    Raises:
        DataError: A picture is damaged, is cut into other patches than the sampler's, or has no tower to read it; or a
            token that stands for pictures was sampled.
    """
    layout = _Layout(processor)
    for trajectory in trajectories:
        layout.add(trajectory)
    layout.fill(group.size)
    own = group.own(layout.width)
    predicting = _joined(layout.predicting)
    places = np.flatnonzero((own.start <= predicting) & (predicting < own.stop))

    def tensor(numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(device)

    return MicroBatch(
        input_ids=tensor(_joined(layout.ids)[own])[None],
        position_ids=tensor(_joined_positions(layout.positions)[..., own]).unsqueeze(-2),
        positions=tensor(predicting[places] - own.start),
        token_ids=tensor(_joined([trajectory.completion_ids for trajectory in trajectories])[places]),
        places=tensor(places),
        row=Row(layout.sequences, device, group),
        lengths=[len(trajectory.completion_ids) for trajectory in trajectories],
        pictures=layout.pictures.of_part(own, device) if layout.pictures else None,
        mask=sampling_mask(trajectories, places, device),
        routes=layout.routes(own, device),
    )


class _Layout:
    """Row in the making: prompts and completions in the order in which they are added."""

    def __init__(self, processor: ImageProcessor | None) -> None:
        self.pictures = PictureTokens(processor) if processor else None
        self.ids: list[NDArray[np.int32]] = []
        self.positions: list[NDArray[np.int64]] = []
        """[n], or [3, n] of a prompt with pictures, for each part of the row."""
        self.sequences: list[NDArray[np.int64]] = []
        self.predicting: list[NDArray[np.int64]] = []
        """Row indices before the completion tokens of each trajectory."""
        self.width = 0
        self._prompts: dict[tuple[bytes, ...], tuple[NDArray[np.int64], int]] = {}
        self._experts: list[NDArray[np.integer]] = []
        """[n, layers, K] for each part of the row but the filling, or nothing."""

    def add(self, trajectory: TrainingTrajectory) -> None:
        if self.pictures:
            self.pictures.check_sampled(trajectory.completion_ids)
        prompt, after = self._prompt(trajectory)
        read = trajectory.completion_ids[:-1]
        indices = np.concatenate((prompt, self._append(read, after + np.arange(len(read)))))
        if trajectory.experts is not None:
            self._experts.append(trajectory.experts[len(prompt) :])
        self.sequences.append(indices)
        self.predicting.append(indices[len(prompt) - 1 :][: len(trajectory.completion_ids)])

    def fill(self, size: int) -> None:
        """Make the width a multiple of ``size``, and not zero."""
        if filling := -self.width % size if self.width else size:
            self.sequences.append(self._append(np.zeros(filling, np.int32), np.arange(filling)))

    def routes(self, own: slice, device: torch.device) -> Tensor | None:
        """[W, layers, K] experts of a part of the row; its filling takes the first experts. None without any."""
        if not self._experts:
            return None
        _, layers, top_k = self._experts[0].shape
        filling = self.width - sum(map(len, self._experts))
        first = np.broadcast_to(np.arange(top_k, dtype=self._experts[0].dtype), (filling, layers, top_k))
        return torch.from_numpy(np.concatenate([*self._experts, first])[own]).to(device)

    def _prompt(self, trajectory: TrainingTrajectory) -> tuple[NDArray[np.int64], int]:
        """Row indices of the prompt, and the position of the first token after it."""
        ids, images = trajectory.prompt_ids, trajectory.images
        experts = None if trajectory.experts is None else trajectory.experts[: len(ids)]
        key = (ids.tobytes(), b"" if experts is None else experts.tobytes(), *(image.digest for image in images))
        if key in self._prompts:
            return self._prompts[key]
        if self.pictures:
            positions, after = self.pictures.positions(ids, images)
            self._prompts[key] = self._append(ids, positions), after
            self.pictures.add(ids, self._prompts[key][0], images)
        elif images:
            raise DataError(
                f"the prompt of group {trajectory.group_id} has {len(images)} pictures, but the model reads none; use "
                f"a model with a vision tower, or data without pictures"
            )
        else:
            self._prompts[key] = self._append(ids, np.arange(len(ids))), len(ids)
        if experts is not None:
            self._experts.append(experts)
        return self._prompts[key]

    def _append(self, part: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        self.ids.append(part)
        self.positions.append(positions)
        self.width += len(part)
        return np.arange(self.width - len(part), self.width)


def sampling_mask(
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


def _joined_positions(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """[W], or [3, W] if a part has three positions for each token; then the others' are the same three times."""
    if all(part.ndim == 1 for part in parts):
        return _joined(parts)
    return np.concatenate([np.broadcast_to(part, (3, part.shape[-1])) for part in parts], axis=1)
