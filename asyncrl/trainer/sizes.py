"""
Numbers of elements of a model that is sharded by rows: of all, of a rank, and of what is gathered together.

    config.json ─ meta_model ─▶ model without weights ─ measure ─▶ Sizes
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import nn
from transformers import PreTrainedModel

from asyncrl.algo.routing import expert_modules
from asyncrl.errors import ConfigError
from asyncrl.plug_in import describe
from asyncrl.trainer.model.architecture import read_architecture
from asyncrl.trainer.model.slices import held
from asyncrl.trainer.ranks.sharding import chunk
from asyncrl.weights.contents.architecture import NONE
from asyncrl.weights.contents.names import View


class Sizes(Struct, frozen=True, kw_only=True):
    """Numbers of elements of a model that is sharded by rows."""

    whole: int
    """Elements of all parameters."""
    whole_model: int
    """Elements of the model's parameters, without adapters."""
    trained: int
    own: int
    """Elements of a rank's rows; the same on every rank, because FSDP pads the last ones."""
    own_trained: int
    root: int
    """Elements outside of layers, such as those of embedding and head: gathered throughout a pass."""
    root_trained: int
    head_trained: int
    """Elements of the head."""
    layer: int
    """Elements of the largest layer that are gathered."""
    layer_trained: int
    parameter: int
    """Elements of the largest parameter."""
    slice: int
    """Elements of the largest part of a checkpoint's tensor that a rank reads at a time."""


def measure(
    model: nn.Module, computation: nn.Module, views: list[View], *, shards: int, expert_parallel: bool = False
) -> Sizes:
    """
    Count the elements of a model on ``meta``.

    Args:
        computation: Contains the model, and adapters.
        views: Of the model, as they are read from files.
        shards: Ranks to shard over.
        expert_parallel: Experts stay with the ranks that hold them, so they are of no layer that is gathered.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    trained = {id(parameter) for parameter in computation.parameters() if parameter.requires_grad}
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    layers = [list(module.parameters()) for module in model.modules() if type(module).__name__ in kinds]
    inside = {id(parameter) for layer in layers for parameter in layer}
    if expert_parallel:
        stay = {id(parameter) for experts in expert_modules(model) for parameter in experts.parameters(recurse=False)}
        layers = [[parameter for parameter in layer if id(parameter) not in stay] for layer in layers]
    everything = list(computation.parameters())
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    root = [parameter for parameter in everything if id(parameter) not in inside]

    def of_trained(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if id(parameter) in trained]

    return Sizes(
        whole=_items(everything),
        whole_model=_items(list(model.parameters())),
        trained=_items(of_trained(everything)),
        own=_items(everything, shards),
        own_trained=_items(of_trained(everything), shards),
        root=_items(root),
        root_trained=_items(of_trained(root)),
        head_trained=_items(of_trained([] if head is None else list(head.parameters()))),
        layer=max(map(_items, layers), default=0),
        layer_trained=max((_items(of_trained(layer)) for layer in layers), default=0),
        parameter=max(prod(shape) for shape in shapes.values()),
        slice=max((_slice_items(view, shapes[view.parameter], shards) for view in views), default=0),
    )


def meta_model(path: Path, kind: Any, setting: str, overrides: Mapping[str, Any] = NONE, **options: object) -> Any:
    """
    A transformers model of a config.json with ``model.overrides``, without weights or buffers.

    Raises `ConfigError` if there is none.
    """
    config = read_architecture(path, setting, overrides)
    config.update(options)
    try:
        with torch.device("meta"):
            return kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    except Exception as error:  # a wrong value in config.json may raise anything
        raise ConfigError(
            f"{setting}={path}: no model can be made by its config.json: {describe(error, __file__)}"
        ) from error


def _items(parameters: list[nn.Parameter], shards: int = 1) -> int:
    """Elements of a rank's rows of parameters."""
    return sum(len(chunk(range(p.shape[0]), shards, 0)) * prod(p.shape[1:]) if p.dim() else 1 for p in parameters)


def _slice_items(view: View, shape: tuple[int, ...], shards: int) -> int:
    rows = chunk(range(shape[0] if shape else 1), shards, 0)
    where = held(view, shape, rows) or ()
    return prod(part.stop - part.start for part in where) if where else 0
