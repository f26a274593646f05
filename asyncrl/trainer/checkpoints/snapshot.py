"""
Copy of a learner's state on the host, from which a checkpoint is written while the next steps train.

Until the checkpoint is written, the copy takes as much host memory as weights and optimizer state together.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from msgspec import Struct
from torch import Tensor
from torch.distributed.tensor import DTensor

from asyncrl.trainer.ranks.sharding import full_tensor

OPTIMIZER = "optimizer"
"""Name of the optimizer's state in `Snapshot.tensors`."""


class SavesWeights(Protocol):
    """Transformers model."""

    def save_pretrained(self, save_directory: Path, /, *, state_dict: dict[str, Tensor]) -> object:
        """Write Hugging Face files into a folder, with these weights instead of the model's own."""


class Snapshot(Struct, frozen=True, kw_only=True, eq=False):
    """State of a learner between two steps; later steps do not change it."""

    model: SavesWeights
    """Writes the model's files. Its own tensors, which later steps change, are not read."""
    weights: dict[str, Tensor]
    """State dict of the model."""
    tensors: dict[str, dict[str, Tensor]]
    """Other learned tensors by file name, such as the optimizer's moments."""
    state: dict[str, float] = {}
    """Learned scalars, such as an adaptive coefficient."""
    random_state: bytes
    """State of torch's CPU generator."""


def host_copy(tensors: Mapping[str, Tensor], *, keeps: bool = True) -> dict[str, Tensor]:
    """
    Copy tensors to the host; a tensor under two names stays one tensor. Collective for sharded tensors.

    A rank that does not keep the copy takes part in the collectives and gets an empty dict.
    """
    copies: dict[object, Tensor] = {}
    found = {}
    for name, tensor in tensors.items():
        if (identity := _identity(tensor)) not in copies:
            copy = full_tensor(tensor)
            copies[identity] = copy.detach().to("cpu", copy=True).contiguous() if keeps else torch.empty(0)
        found[name] = copies[identity]
    return found if keeps else {}


def _identity(tensor: Tensor) -> object:
    """
    Key that is equal for two names of one tensor.

    It is equal on every rank alike, because the copy is collective. A data address would not be: a rank's part of a
    tensor may be empty, and all empty tensors have the same address.
    """
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return (local.untyped_storage()._cdata, local.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
