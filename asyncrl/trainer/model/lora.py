"""
Low-rank adapters (LoRA): the model is frozen, and a low-rank path beside each of its linear layers is trained.

    x ──▶ W ───────────────(+)──▶        W [O, I] frozen
    └──▶ A ──▶ B ──▶ · α/r ──┘           A [r, I], B [O, r] trained; B starts at zero, and with it the path's output

Adapters are kept outside of the model, whose tensors keep their names, so publishing, saving and sharding need no
special case. The published weight is W + α/r · B A, under the name of W. A vision tower has none, and stays as it is.
With ``trainer.lora.path`` they start as the adapter of a directory of the PEFT library.

Source:
    Hu et al. 2021, arXiv:2106.09685.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from safetensors import safe_open
from torch import Tensor, nn

from asyncrl.config.model.adapter import DOWN, PREFIX, UP, WEIGHTS, check_adapter, last_name, layers_of
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.checkpoints.snapshot import Stored, StoredTensor, read_rows
from asyncrl.trainer.model.vision import vision_tower
from asyncrl.trainer.ranks.sharding import full_tensor, local_rows, shard_like
from asyncrl.weights.contents.names import checkpoint_tensors, checkpoint_views, saved_tensors

SEED = 0
"""Seed of the initial A: fixed, so that all ranks start with the same A."""


class Adapters(nn.Module):
    """
    Adapters of a transformers model, which is frozen; its forward pass includes them from now on.

    They have no values before `initialize`, and no memory if the model has none.

    Raises:
        ConfigError: A target names no linear layer, or a layer that checkpoints store in another form.
    """

    def __init__(self, model: Any, config: Lora) -> None:
        super().__init__()
        self.scale = config.effective_alpha / config.rank
        self._config = config
        self._down, self._up = nn.ParameterDict(), nn.ParameterDict()
        self._keys: dict[str, str] = {}
        """Key in the `ParameterDict`s, which allow no dots, by name of the layer's weight."""
        model.requires_grad_(False)
        for name, layer in _target_layers(model, config.targets).items():
            self._adapt(name, layer, config.rank)

    @torch.no_grad()
    def initialize(self) -> None:
        """
        Set the weights with which training starts, once the tensors have memory; the same on any number of ranks.

        Raises:
            ConfigError: The adapter of ``trainer.lora.path`` is not one of these layers, or not finite.
        """
        if self._config.path:
            self._read(Path(self._config.path) / WEIGHTS)
            return
        random = torch.Generator().manual_seed(SEED)
        for key in self._keys.values():
            down = self._down[key]
            bound = 1 / math.sqrt(down.shape[1])
            down.copy_(shard_like(torch.empty(down.shape).uniform_(-bound, bound, generator=random), down))
            self._up[key].zero_()

    def named(self) -> dict[str, nn.Parameter]:
        """Trainable tensors by PEFT's names."""
        parts = {DOWN: self._down, UP: self._up}
        return {
            f"{PREFIX}{name.removesuffix('.weight')}{part}": tensors[key]
            for name, key in self._keys.items()
            for part, tensors in parts.items()
        }

    def check_path(self) -> None:
        """Raise `ConfigError` unless the adapter of ``trainer.lora.path`` is one of these layers."""
        source, found = f"trainer.lora.path={self._config.path}", check_adapter(self._config)
        expected = {name: tuple(weight.shape) for name, weight in self.named().items()}
        for name in sorted(found.keys() & expected.keys()):
            if found[name] != expected[name]:
                raise ConfigError(
                    f"{source}: {name} has shape {list(found[name])}, but for this model it must have "
                    f"{list(expected[name])}; use an adapter of this model"
                )
        if other := sorted(found.keys() ^ expected.keys()):
            kinds = sorted(set(map(last_name, layers_of(found))))
            raise ConfigError(
                f"{source} {'has' if other[0] in found else 'lacks'} {other[0]}, unlike the adapters that trainer.lora "
                f"has on this model; set trainer.lora.targets = {json.dumps(kinds)}, or use an adapter of this model"
            )

    def merged(self, name: str, weight: Tensor) -> Tensor:
        """
        Merge the adapter of a weight [O, I]; ``weight`` itself if it has none.

        ``name`` is its name in the model.
        """
        if (key := self._keys.get(name)) is None:
            return weight
        up, down = full_tensor(self._up[key].detach()), full_tensor(self._down[key].detach())
        return torch.addmm(full_tensor(weight), up, down, alpha=self.scale)

    @torch.no_grad()
    def restore(self, tensors: Stored) -> None:
        """
        Read this rank's rows of tensors from `named`.

        Raises:
            LedgerError: They are not of these adapters; nothing was changed.
        """
        own = self.named()
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = {name: tuple(weight.shape) for name, weight in own.items()}
        if shapes != expected:
            wrong = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
            raise LedgerError(
                f"adapters: expected {expected.get(wrong[0])} for {wrong[0]}, got {shapes.get(wrong[0])}; was "
                f"trainer.lora changed?"
            )
        for name, weight in own.items():
            read_rows(weight, tensors[name])

    def _read(self, path: Path) -> None:
        self.check_path()
        with safe_open(path, framework="pt") as file:
            for name, weight in self.named().items():
                read_rows(weight, StoredTensor(file.get_slice(name)))
                if not local_rows(weight.detach())[0].isfinite().all():
                    raise ConfigError(f"{path}: {name} has values that are NaN or infinite; copy the adapter again")

    def _adapt(self, name: str, layer: nn.Linear, rank: int) -> None:
        key = self._keys[f"{name}.weight"] = name.replace(".", "/")
        self._down[key] = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self._up[key] = nn.Parameter(layer.weight.new_empty(layer.out_features, rank))

        def add_low_rank(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output + F.linear(F.linear(inputs[0], self._down[key]), self._up[key]) * self.scale

        layer.register_forward_hook(add_low_rank)


def _target_layers(model: Any, targets: Sequence[str]) -> dict[str, nn.Linear]:
    """
    Linear layers of the language model by full name, without the head; only those whose last name is in ``targets``,
    if there are any.
    """
    whole, tower = _saved_whole(model), vision_tower(model)
    others = {model.get_output_embeddings(), *(tower.modules() if tower else ())}
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear and layer not in others}
    kinds = {name.rpartition(".")[2] for name in layers}
    if unknown := sorted(set(targets) - kinds):
        raise ConfigError(
            f"trainer.lora.targets: {type(model).__name__} has no linear layer {unknown[0]!r}; its layers are "
            f"{', '.join(sorted(kinds))}"
        )
    selected = {name: layer for name, layer in layers.items() if not targets or name.rpartition(".")[2] in targets}
    if not selected:
        raise ConfigError(
            f"trainer.lora.rank: {type(model).__name__} has no layer of type torch.nn.Linear, so no adapter fits it; "
            f"set it to 0"
        )
    for name in selected:
        if f"{name}.weight" not in whole:
            raise ConfigError(
                f"trainer.lora.targets: checkpoints of {type(model).__name__} store {name} in another form, so an "
                f"adapter cannot be merged into it; leave {name.rpartition('.')[2]!r} out"
            )
    return selected


def _saved_whole(model: nn.Module) -> set[str]:
    """Parameters that a checkpoint stores as one tensor of the same shape, by their names in the model."""
    own = saved_tensors(model)
    if (views := checkpoint_views(model, own)) is not None:
        return {view.parameter for view in views if view.shape == tuple(own[view.parameter].shape)}
    return {name for name, tensor in checkpoint_tensors(model) if name in own and tensor.shape == own[name].shape}
