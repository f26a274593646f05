"""
Low-rank adapters: the model stays as it is, and a narrow detour beside each of its linear layers is trained.

    x ──▶ W ───────────────(+)──▶        W [O, I] frozen
    └──▶ A ──▶ B ──▶ · α/r ──┘           A [r, I], B [O, r] trained; B starts at zero, and with it the detour

Adapters lie beside the model, not in it: its tensors keep their names and places, so that publishing, saving and
sharding need not know of them. What is published is W + α/r · B A, under the name of W.

Source:
    Hu et al. 2021, arXiv:2106.09685.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import Tensor, nn

from asyncrl.config.sections import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.ranks.sharding import share, whole
from asyncrl.weights.contents.names import checkpoint_tensors

SEED = 0
"""Of A. Every rank starts with the same, whatever else it has drawn."""


class Adapters(nn.Module):
    """
    Detours around linear layers of one model, which is frozen.

    Args:
        model: Of transformers. Its forward pass takes the detours from here on.
        config: Of rank 1 at least.

    Raises:
        ConfigError: A target names no linear layer, or one that checkpoints have in another form.
    """

    def __init__(self, model: Any, config: Lora) -> None:
        super().__init__()
        self.scale = (config.alpha or 2 * config.rank) / config.rank
        self._down, self._up = nn.ParameterDict(), nn.ParameterDict()
        self._names: dict[str, str] = {}
        """Of the layer's weight, to what a `ParameterDict` calls it: that allows no dots."""
        model.requires_grad_(False)
        random = torch.Generator().manual_seed(SEED)
        for name, layer in _targets(model, config.targets).items():
            self._adapt(name, layer, config.rank, random)

    def named(self) -> dict[str, nn.Parameter]:
        """Trainable tensors, by the names PEFT gives them."""
        parts = {"lora_A": self._down, "lora_B": self._up}
        return {
            f"base_model.model.{name.removesuffix('.weight')}.{part}.weight": tensors[key]
            for name, key in self._names.items()
            for part, tensors in parts.items()
        }

    def merged(self, name: str, weight: Tensor) -> Tensor:
        """
        A tensor of the model with its detour, if it has one.

        Args:
            name: In the model or, which is the same for these, in a checkpoint.
            weight: [O, I]. Given back where there is no detour.
        """
        if (key := self._names.get(name)) is None:
            return weight
        up, down = whole(self._up[key].detach()), whole(self._down[key].detach())
        return torch.addmm(whole(weight), up, down, alpha=self.scale)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """
        Take back what `named` gave. Copied.

        Raises:
            LedgerError: The tensors are not of these adapters; nothing was changed.
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
            weight.copy_(share(tensors[name], weight))

    def _adapt(self, name: str, layer: nn.Linear, rank: int, random: torch.Generator) -> None:
        key = self._names[f"{name}.weight"] = name.replace(".", "/")
        bound = 1 / math.sqrt(layer.in_features)
        down = torch.empty(rank, layer.in_features).uniform_(-bound, bound, generator=random)
        self._down[key] = nn.Parameter(down.to(layer.weight.device))
        self._up[key] = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))

        def detour(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output + F.linear(F.linear(inputs[0], self._down[key]), self._up[key]) * self.scale

        layer.register_forward_hook(detour)


def _targets(model: Any, targets: Sequence[str]) -> dict[str, nn.Linear]:
    """Linear layers by name, save the head. Those called like a target, or all."""
    head, saved = model.get_output_embeddings(), dict(checkpoint_tensors(model))
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear and layer is not head}
    kinds = {name.rpartition(".")[2] for name in layers}
    if unknown := sorted(set(targets) - kinds):
        raise ConfigError(
            f"trainer.lora.targets: no linear layer is called {unknown[0]!r}; those of {type(model).__name__} are "
            f"{', '.join(sorted(kinds))}"
        )
    chosen = {name: layer for name, layer in layers.items() if not targets or name.rpartition(".")[2] in targets}
    for name, layer in chosen.items():
        if f"{name}.weight" not in saved or saved[f"{name}.weight"].shape != layer.weight.shape:
            raise ConfigError(
                f"trainer.lora.targets: {name} of {type(model).__name__} is saved in another form than it is computed "
                f"with, so an adapter cannot be merged into it; leave {name.rpartition('.')[2]!r} out"
            )
    return chosen
