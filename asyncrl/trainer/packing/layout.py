"""
Row of a micro-batch in the making: trajectories are added one by one, and equal beginnings lie in it once.

    prompt p, completions a b, a c      row  p p p a b c        paths  0 1 2 3 4
                                                                       0 1 2 3 5

Tokens share a place if they and all tokens before them are equal, whoever wrote them: then so are their states. With
recorded experts, these must be equal too; with pictures, the pictures of the prompts. Contexts that follow nothing
begin at position 0, as prompts do, and have no pictures.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import DataError
from asyncrl.messages.trajectory import FROM_NOTHING
from asyncrl.trainer.packing.branches import Branch, branches, turns_of
from asyncrl.trainer.packing.pictures import PictureTokens
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from asyncrl.trainer.packing.trie import Symbols, Trie
from asyncrl.vision.processor import ImageProcessor

FILLING = "filling"
"""Root of the sequence that fills a row up."""
Root = tuple[object, ...] | str
"""Pictures of a prompt, or `FILLING`."""


class Layout:
    """
    Row of W tokens.

    Args:
        processor: Reads the pictures; None for a model that reads none.
    """

    def __init__(self, processor: ImageProcessor | None) -> None:
        self.pictures = PictureTokens(processor) if processor else None
        self.ids: list[NDArray[np.int32]] = []
        """Parts of the row."""
        self.positions: list[NDArray[np.int64]] = []
        """[n], or [3, n] with pictures, for each part of the row."""
        self.predicting: list[NDArray[np.int64]] = []
        """[T] row indices before the completion tokens of each trajectory."""
        self._trie = Trie()
        self._paths: dict[int, NDArray[np.int64]] = {}
        """Row indices of each branch, by the last."""
        self._prompts: dict[tuple[object, ...], tuple[NDArray[np.int64], int]] = {}
        self._experts: list[NDArray[np.integer]] = []
        """[n, layers, K] for each part of the row but the filling, or nothing."""

    @property
    def width(self) -> int:
        return self._trie.size

    @property
    def sequences(self) -> list[NDArray[np.int64]]:
        """Row indices of each branch that no other continues, so that every index is in at least one."""
        is_followed = np.zeros(self.width, np.bool_)
        for path in self._paths.values():
            is_followed[path[:-1]] = True
        return [path for last, path in self._paths.items() if not is_followed[last]]

    def add(self, trajectory: TrainingTrajectory) -> None:
        """
        Append what the row does not have yet of a trajectory.

        Raises:
            DataError: Pictures and tokens do not match, or there is no tower to read them.
        """
        if self.pictures:
            self.pictures.check_text(trajectory.completion_ids, trajectory.context_ids)
        written = [turn.num_written for turn in turns_of(trajectory)]
        predicting = [np.zeros(0, np.int64)] * len(written)
        for branch in branches(trajectory):
            path = self._place(trajectory, branch)
            for turn, start in branch.starts.items():
                predicting[turn] = path[start - 1 : start - 1 + written[turn]]
        self.predicting.append(np.concatenate(predicting))

    def fill(self, size: int) -> None:
        """Make the width a multiple of ``size``, and not zero."""
        if filling := -self.width % size if self.width else size:
            self._append(FILLING, np.zeros(filling, np.int32), np.arange(filling))

    def routes(self, own: slice, device: torch.device) -> Tensor | None:
        """[W, layers, K] experts of a part of the row; its filling takes the first experts. None without any."""
        if not self._experts:
            return None
        _, layers, top_k = self._experts[0].shape
        filling = self.width - sum(map(len, self._experts))
        first = np.broadcast_to(np.arange(top_k, dtype=self._experts[0].dtype), (filling, layers, top_k))
        return torch.from_numpy(np.concatenate([*self._experts, first])[own]).to(device)

    def _place(self, trajectory: TrainingTrajectory, branch: Branch) -> NDArray[np.int64]:
        """Row indices of a branch's tokens."""
        ids, experts = branch.read, trajectory.experts
        if branch.root == FROM_NOTHING:
            return self._append((), ids, np.arange(len(ids)))
        prompt, images = len(trajectory.prompt_ids), trajectory.images
        root = tuple((image.digest, tuple(image.grid)) for image in images)
        known = self.width
        path = self._append(root, ids, self._positions(trajectory, len(ids)), experts)
        if self.pictures:
            self.pictures.add(trajectory.prompt_ids, path[:prompt], images, since=known)
        return path

    def _append(
        self,
        root: Root,
        ids: NDArray[np.int32],
        positions: NDArray[np.int64],
        experts: NDArray[np.integer] | None = None,
    ) -> NDArray[np.int64]:
        """Row indices of a sequence; the tokens that the row does not have yet are appended."""
        path, known = self._trie.insert(root, ids if experts is None else _routed(ids, experts[: len(ids)]))
        self._paths[int(path[-1])] = path
        self.ids.append(ids[known:])
        self.positions.append(positions[..., known:])
        if experts is not None:
            self._experts.append(experts[known : len(ids)])
        return path

    def _positions(self, trajectory: TrainingTrajectory, length: int) -> NDArray[np.int64]:
        """Positions of ``length`` tokens that begin with the prompt; a picture takes fewer positions than tokens."""
        ids, images = trajectory.prompt_ids, trajectory.images
        if not self.pictures:
            if images:
                raise DataError(
                    f"the prompt of group {trajectory.group_id} has {len(images)} pictures, but the model reads none; "
                    f"use a model with a vision tower, or data without pictures"
                )
            return np.arange(length)
        key = (ids.tobytes(), *((image.digest, tuple(image.grid)) for image in images))
        if key not in self._prompts:
            self._prompts[key] = self.pictures.positions(ids, images)
        of_prompt, after = self._prompts[key]
        later = np.broadcast_to(after + np.arange(length - len(ids)), (*of_prompt.shape[:-1], length - len(ids)))
        return np.concatenate((of_prompt, later), -1)


def _routed(ids: NDArray[np.int32], experts: NDArray[np.integer]) -> Symbols:
    """Symbols that are equal if both the token and its experts are."""
    parts = [ids[:, None].view(np.uint8), np.ascontiguousarray(experts).reshape(len(ids), -1).view(np.uint8)]
    joined = np.ascontiguousarray(np.concatenate(parts, 1))
    return joined.view(f"V{joined.shape[1]}")[:, 0]
