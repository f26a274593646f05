"""
Static KV cache: one slot per running completion, allocated once.

    storage [layers, slots, positions, 2, kv_heads, head_dim]      2: key, value

Key and value of one position are adjacent, so one `index_copy_` per layer writes a step's tokens, and one operation
copies a slot in all layers. Slots 0 .. n - 1 are the running ones, so a step reads a view instead of a gather.
"""

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from asyncrl.rollout.engines.transformers.route_cache import RouteCache


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
