"""
Experts of the tokens in the KV cache, for replay in the trainer.

    storage [slots · positions, layers, K]     cells as in `KVCache`

A hook on the experts of each layer records the choice of its router. The caller of a forward pass sets `cells` first.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from asyncrl.algo.routing import Experts, expert_modules, route_shape
from asyncrl.errors import ConfigError


class RouteCache:
    """Experts of each cell of the KV cache. Raises `ConfigError` if the model has no experts."""

    def __init__(self, model: PreTrainedModel, *, slots: int, positions: int) -> None:
        shape = route_shape(model)
        if shape is None:
            raise ConfigError(
                f"rollout.replay_routes is true, but {type(model).__name__} has no mixture of experts; set it to false"
            )
        self._positions = positions
        self.storage = torch.zeros(
            (slots * positions, shape.layers, shape.top_k),
            dtype=torch.uint8 if shape.num_experts <= 256 else torch.int16,
            device=model.device,
        )
        self.cells = torch.empty(0)
        """Cells of the tokens of the next forward pass, [N]."""
        for layer, experts in enumerate(expert_modules(model)):
            experts.register_forward_pre_hook(partial(self._record, layer))

    @staticmethod
    def num_bytes(config: PreTrainedConfig, slots: int, positions: int) -> int:
        """Upper bound of the storage in bytes, as if every layer had experts."""
        return 2 * slots * positions * int(config.num_hidden_layers) * getattr(config, "num_experts_per_tok", 0)

    def _record(self, layer: int, _: nn.Module, args: tuple[Any, ...]) -> None:
        """Record the experts of one layer; ``args`` are states [N, H], indices [N, K] and weights [N, K]."""
        self.storage[:, layer].index_copy_(0, self.cells, args[1].to(self.storage.dtype))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` to slot ``target``."""
        cells = self.storage.view(-1, self._positions, *self.storage.shape[1:])
        cells[target, :length] = cells[source, :length]

    def read(self, slot: int, start: int, end: int) -> Experts:
        """Copy the experts of positions ``start .. end - 1`` of a slot to the host, [end - start, layers, K]."""
        first = slot * self._positions
        experts: Experts = self.storage[first + start : first + end].to("cpu", copy=True).numpy()
        return experts
