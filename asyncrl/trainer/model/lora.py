"""
Low-rank adapters (LoRA): the model is frozen, and a low-rank path beside each of its linear layers is trained.

    x ──▶ W ───────────────(+)──▶        W [O, I] frozen
    └──▶ A ──▶ B ──▶ · α/r ──┘           A [r, I], B [O, r] trained; B starts at zero, and with it the path's output

Adapters are kept outside of the model, whose tensors keep their names, so publishing, saving and sharding need no
special case. The published weight is W + α/r · B A, under the name of W. A vision tower has none, and stays as it is.

Source:
    Hu et al. 2021, arXiv:2106.09685.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn

from asyncrl.config.sections import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.checkpoints.stored import Stored, read_rows
from asyncrl.trainer.model.vision import vision_tower
from asyncrl.trainer.ranks.sharding import full_tensor, shard_like
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
        self.scale = (config.alpha or 2 * config.rank) / config.rank
        self._down, self._up = nn.ParameterDict(), nn.ParameterDict()
        self._keys: dict[str, str] = {}
        """Key in the `ParameterDict`s, which allow no dots, by name of the layer's weight."""
        model.requires_grad_(False)
        for name, layer in _target_layers(model, config.targets).items():
            self._adapt(name, layer, config.rank)

    @torch.no_grad()
    def initialize(self) -> None:
        """Set the weights with which training starts, once the tensors have memory; the same on any number of ranks."""
        random = torch.Generator().manual_seed(SEED)
        for key in self._keys.values():
            down = self._down[key]
            bound = 1 / math.sqrt(down.shape[1])
            down.copy_(shard_like(torch.empty(down.shape).uniform_(-bound, bound, generator=random), down))
            self._up[key].zero_()

    def named(self) -> dict[str, nn.Parameter]:
        """Trainable tensors by PEFT's names."""
        parts = {"lora_A": self._down, "lora_B": self._up}
        return {
            f"base_model.model.{name.removesuffix('.weight')}.{part}.weight": tensors[key]
            for name, key in self._keys.items()
            for part, tensors in parts.items()
        }

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
