"""
State of a learner between two steps, from which a checkpoint is made while the next steps train.

    gathered tensor by tensor ─▶ own part ─▶ files, in the page cache ─▶ disk      digests, flush: beside the next steps
                                         └─▶ copies on the host                    without a folder to write to

Files take no memory of the process beyond one tensor: the system keeps as much of them as it has room for, and slows
the writer down to the speed of its disk beyond that.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.trainer.checkpoints.parts import Part
from asyncrl.trainer.checkpoints.tensor_file import write_tensors
from asyncrl.trainer.ranks.sharding import full_tensor

OPTIMIZER = "optimizer"
"""Name of the optimizer's state in `Snapshot.tensors`."""
ADAPTERS = "adapters"
"""Name of LoRA's adapters in `Snapshot.tensors`; the weights of a checkpoint have them merged."""


class SavesConfig(Protocol):
    """Config of a transformers model."""

    def save_pretrained(self, save_directory: Path, /) -> object:
        """Write config.json, or a file like it, into a folder."""


class Snapshot(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's part of the state of a learner between two steps; later steps do not change it."""

    configs: list[SavesConfig]
    """Configs of the model, which the first rank writes."""
    part: Part = Part()
    files: list[str] = []
    """Files that the own part was written to, by path in the checkpoint; empty if it is in the next fields."""
    weights: dict[str, Tensor] = {}
    """Own part of the weights, by their names in a checkpoint."""
    weight_parts: dict[str, int]
    """Part of each weight, in the order of the weights."""
    tensors: dict[str, dict[str, Tensor]] = {}
    """Own part of other learned tensors by file name, such as the optimizer's moments."""
    state: dict[str, float] = {}
    """Learned scalars, such as an adaptive coefficient."""
    random_state: bytes
    """State of torch's CPU generator."""


class OwnPart:
    """
    Takes the tensors of one part, while those of all parts are gathered one after the other.

    Args:
        folder: Written to; None copies to the host.
    """

    def __init__(self, part: Part, folder: Path | None) -> None:
        self._part = part
        self._folder = folder if part.index < part.count else None  # A rank of another machine has no part.
        self.files: list[str] = []
        """Files that were written."""

    def take(
        self, stem: str, parts: Mapping[str, int], empty: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]
    ) -> dict[str, Tensor]:
        """
        Write the own tensors to the file with this stem, or return copies of them.

        Args:
            parts: Part of each tensor.
            empty: Each tensor without values, on ``meta``.
            tensors: Each tensor, borrowed until the next one.
        """
        own = {name: tensor for name, tensor in empty.items() if parts[name] == self._part.index}
        if self._folder is None:
            return {name: host_copy(tensor) for name, tensor in tensors if name in own}
        file = self._part.file(stem)
        write_tensors(self._folder / file, own, tensors)
        self.files.append(file)
        return {}


def gathered(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor, whole. Collective for sharded ones."""
    for name, tensor in tensors.items():
        yield name, full_tensor(tensor.detach())


def emptied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes and dtypes on ``meta``; whole for sharded ones."""
    return {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in tensors.items()}


def num_bytes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: tensor.nbytes for name, tensor in tensors.items()}


def host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
