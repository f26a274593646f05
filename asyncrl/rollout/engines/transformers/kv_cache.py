"""
Static KV cache: one slot per running completion, allocated once.

    storage [layers, slots, positions, 2, kv_heads, head_dim]      2: key, value

Key and value of one position are adjacent, so one `index_copy_` per layer writes a step's tokens, and one operation
copies a slot in all layers. Slots 0 .. n - 1 are the running ones, so a step reads a view instead of a gather.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from asyncrl.algo.routing import Experts, expert_modules, route_shape
from asyncrl.config.config import Config
from asyncrl.config.memory import EngineRoom, MemoryPart
from asyncrl.errors import ConfigError

# ── route cache ───────────────────────────────────────────────────────────────────────────────
# Experts of the tokens in the KV cache, for replay in the trainer.
#
#     storage [slots · positions, layers, K]     cells as in `KVCache`
#
# A hook on the experts of each layer records the choice of its router. The caller of a forward pass sets `cells`
# first.


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


# ── kv cache ──────────────────────────────────────────────────────────────────────────────────


class KVCache:
    """Cells are never cleared: no completion reads beyond its own position."""

    def __init__(
        self, config: PreTrainedConfig, *, slots: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        heads = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.positions = positions
        shape = (config.num_hidden_layers, slots, positions, 2, self.kv_heads, self.head_dim)
        # Zeros instead of uninitialised memory: a masked position is multiplied by 0, and 0 times NaN is NaN.
        self.storage = torch.zeros(shape, dtype=dtype, device=device)
        self.routes: RouteCache | None = None
        """Experts of the same tokens; None if they are not recorded."""
        self._cells = self.storage.view(len(self.storage), slots * positions, 2 * self.kv_heads * self.head_dim)

    @property
    def num_bytes(self) -> int:
        return self.storage.nbytes

    def memory(self) -> list[Tensor]:
        """All allocated tensors, borrowed."""
        return [self.storage] if self.routes is None else [self.storage, self.routes.storage]

    def cells(self, layer: int) -> Tensor:
        """View [slots * positions, 2 * kv_heads * head_dim] of a layer, keys first."""
        return self._cells[layer]

    def write(self, layer: int, cells: Tensor, keys_values: Tensor) -> None:
        """Store [N, 2 * kv_heads * head_dim], keys first, at [N] cells ``slot * positions + position``."""
        self._cells[layer].index_copy_(0, cells, keys_values)

    def read(self, layer: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of slots 0 .. rows - 1, each a view [rows, kv_heads, length, head_dim]."""
        keys, values = self.storage[layer, :rows, :length].unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def gather(self, layer: int, slots: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of [B] slots, each a copy [B, kv_heads, length, head_dim]."""
        keys, values = self.storage[layer, slots, :length].unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` to slot ``target``."""
        self.storage[:, target, :length] = self.storage[:, source, :length]
        if self.routes is not None:
            self.routes.copy(source, target, length)


# ── kept turns ────────────────────────────────────────────────────────────────────────────────
# Free slots whose keys and values are those of a finished completion.
#
# The next turn of an episode begins with all tokens of the one before, so it needs only those after them. A slot is
# kept until another request takes it, and all are forgotten with new weights.


def longest_kept(kept: Mapping[int, tuple[int, ...]], prefix: Sequence[int]) -> tuple[int, int]:
    """
    Slot with the most tokens that a prefix begins with, and their number; (-1, 0) if there is none.

    ``kept`` are the tokens that are cached in free slots.
    """
    found, most = -1, 0
    for slot, tokens in kept.items():
        length = len(tokens)
        # The last token is compared first: most slots have those of other episodes.
        if most < length < len(prefix) and prefix[length - 1] == tokens[-1] and prefix[:length] == tokens:
            found, most = slot, length
    return found, most


# ── plan ──────────────────────────────────────────────────────────────────────────────────────
# Memory that the engine will take beside the weights.

SAMPLING_COPIES = 4
"""Tensors of the size of the logits, as float32, that are alive while tokens are drawn."""


def plan(config: Config, text_config: Any, room: EngineRoom) -> list[MemoryPart]:
    """Keys and values of every slot to its last position, and the logits of a step while tokens are drawn from them."""
    slots, positions, dtype = config.rollout.slots, config.longest_request, getattr(torch, config.model.dtype)
    cache = KVCache(text_config, slots=slots, positions=positions, dtype=dtype, device=torch.device("meta"))
    logits = SAMPLING_COPIES * torch.float32.itemsize * slots * int(text_config.vocab_size)
    routes = RouteCache.num_bytes(text_config, slots, positions) if config.rollout.replay_routes else 0
    return [
        MemoryPart(name="KV cache", device=cache.num_bytes, setting="rollout.slots"),
        MemoryPart(name="logits", device=logits, setting="rollout.slots"),
        MemoryPart(name="recorded experts", device=routes, setting="rollout.replay_routes"),
    ]
