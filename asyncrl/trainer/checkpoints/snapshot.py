"""
Copy of a learner's state on the host, from which a checkpoint is written while the next steps train.

Until the checkpoint is written, the copies of all ranks take as much host memory as weights and optimizer state
together: each keeps the tensors that it writes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from msgspec import Struct
from torch import Tensor

from asyncrl.trainer.checkpoints.parts import Part, divide
from asyncrl.trainer.ranks.sharding import full_tensor

OPTIMIZER = "optimizer"
"""Name of the optimizer's state in `Snapshot.tensors`."""


class SavesConfig(Protocol):
    """Config of a transformers model."""

    def save_pretrained(self, save_directory: Path, /) -> object:
        """Write config.json, or a file like it, into a folder."""


class Snapshot(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's part of the state of a learner between two steps; later steps do not change it."""

    configs: list[SavesConfig]
    """Configs of the model, which the first rank writes."""
    part: Part = Part()
    weights: dict[str, Tensor]
    """Own part of the weights, by their names in a checkpoint."""
    weight_parts: dict[str, int]
    """Part of each weight, in the order of the weights."""
    tensors: dict[str, dict[str, Tensor]]
    """Own part of other learned tensors by file name, such as the optimizer's moments."""
    state: dict[str, float] = {}
    """Learned scalars, such as an adaptive coefficient."""
    random_state: bytes
    """State of torch's CPU generator."""


def own_weights(weights: Iterable[tuple[str, Tensor]], parts: Mapping[str, int], own: Part) -> dict[str, Tensor]:
    """Copy the weights of the own part to the host, while all of them are gathered one after the other."""
    return {name: host_copy(weight) for name, weight in weights if parts[name] == own.index}


def own_tensors(tensors: Mapping[str, Tensor], own: Part) -> dict[str, Tensor]:
    """
    Copy the tensors of the own part to the host. Collective for sharded tensors.

    One tensor at a time is gathered.
    """
    parts = divide({name: tensor.numel() * tensor.itemsize for name, tensor in tensors.items()}, own.count)
    found = {}
    for name, tensor in tensors.items():
        whole = full_tensor(tensor.detach())
        if parts[name] == own.index:
            found[name] = host_copy(whole)
    return found


def host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
