"""
What a learner is between two steps, copied to the host: a checkpoint is written from it while the next steps train.

A copy costs the host as much memory as weights and optimizer have, for as long as the checkpoint is being written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from msgspec import Struct
from torch import Tensor
from torch.distributed.tensor import DTensor

from asyncrl.trainer.ranks.sharding import whole

OPTIMIZER = "optimizer"
"""What `Snapshot.tensors` calls the optimizer's state."""


class SavesWeights(Protocol):
    """A transformers model."""

    def save_pretrained(self, save_directory: Path, /, *, state_dict: dict[str, Tensor]) -> object:
        """Write Hugging Face files into a folder, with these weights in the place of its own."""


class Snapshot(Struct, frozen=True, kw_only=True, eq=False):
    """Nothing that the learner does afterwards changes it."""

    model: SavesWeights
    """Says what its files are; its own tensors are those of the next steps, and not read."""
    weights: dict[str, Tensor]
    """By the names of its state dict."""
    tensors: dict[str, dict[str, Tensor]]
    """Further files, by name: the optimizer's moments, and whatever else is learned."""
    state: dict[str, float] = {}
    """Numbers that are neither weights nor moments, such as a coefficient that adapts."""
    random_state: bytes
    """Torch's CPU generator."""


def host_copy(tensors: Mapping[str, Tensor], *, keeps: bool = True) -> dict[str, Tensor]:
    """
    The same names and values in memory of their own, on the host. What was one tensor under two names stays one.

    Args:
        tensors: Those that are spread over ranks are put together, which is collective.
        keeps: False for a rank that takes part in that, and needs no copy.
    """
    copies: dict[object, Tensor] = {}
    found = {}
    for name, tensor in tensors.items():
        if (place := _place(tensor)) not in copies:
            copy = whole(tensor)
            copies[place] = copy.detach().to("cpu", copy=True).contiguous() if keeps else torch.empty(0)
        found[name] = copies[place]
    return found if keeps else {}


def _place(tensor: Tensor) -> object:
    """
    Equal for two names of one tensor, on every rank alike: the copy is collective, and a share may have no elements.

    So it is not the address of what lies there: nothing does, and all that is empty would be one.
    """
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return (local.untyped_storage()._cdata, local.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
