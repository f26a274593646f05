"""
Packed form of trajectories, which a model reads.

Shapes: S trajectories, W tokens of the packed row, N completion tokens. There is no padding. Trajectories, and branches
of an episode, share what they begin with (`asyncrl.trainer.packing.layout`), and attention computes each as if it were
alone (`asyncrl.trainer.packing.row`). A token after which nothing is predicted is not in the row.

    input_ids      p p p c c d q c         p, q prompts; c, d completions
    position_ids   0 1 2 3 4 3 0 1
    positions          ▲ ▲ ▲ ▲ ▲ ▲         the state at a position predicts the token after it

With pictures a token has three positions, in time, height and width (`asyncrl.trainer.packing.pictures`).

Ranks that share the row (`SequenceGroup`) have a slice of its tokens each: the completion tokens that a rank scores are
those whose position is in its slice, wherever they are themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.logprobs import SamplingMask
from asyncrl.trainer.packing.layout import RowLayout
from asyncrl.trainer.packing.pictures import PackedPictures
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import ALONE, SequenceGroup
from asyncrl.vision.processor import ImageProcessor


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
    pictures: PackedPictures | None = None
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
    Pack trajectories into one row, in which equal beginnings appear once, and take this rank's part of it.

    Either all trajectories have experts, or none.

    The row is filled up with one more sequence until the ranks of ``group`` have equal parts of one token or more.
    Without trajectories that is all of it: N is 0, and a rank takes part in the collectives of the others.

    Args:
        processor: Reads the pictures; None for a model that reads none.

    Raises:
        DataError: A picture is damaged, is cut into other patches than the sampler's, or has no tower to read it; or a
            token that stands for pictures comes after a prompt.
    """
    layout = RowLayout(processor)
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
