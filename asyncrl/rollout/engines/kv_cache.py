"""
Keys and values of every running completion, one slot each, allocated once.

    storage [layers, slots, positions, 2, kv_heads, head_dim]      2: key, value

What was written at one position of one slot lies together, so tokens are written with one `index_copy_` a layer, and
a slot is copied with one operation for all layers. Slots 0 .. n - 1 are the running ones: a step reads a view, never a
gather.
"""

import torch
from torch import Tensor
from transformers import PreTrainedConfig


class KVCache:
    """A static cache. Writers name positions; nothing is cleared, because nobody reads behind his own position."""

    def __init__(
        self, config: PreTrainedConfig, *, slots: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        heads = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.positions = positions
        shape = (config.num_hidden_layers, slots, positions, 2, self.kv_heads, self.head_dim)
        # Zeros, not garbage: a masked position is multiplied by 0, and 0 times a leftover NaN is NaN.
        self._storage = torch.zeros(shape, dtype=dtype, device=device)
        self._cells = self._storage.view(len(self._storage), slots * positions, 2 * self.kv_heads * self.head_dim)

    def write(self, layer: int, cells: Tensor, keys_values: Tensor) -> None:
        """
        Store single positions.

        Args:
            layer: Which.
            cells: [N] ``slot * positions + position``.
            keys_values: [N, 2 * kv_heads * head_dim], keys first.
        """
        self._cells[layer].index_copy_(0, cells, keys_values)

    def read(self, layer: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of the keys and values [rows, kv_heads, length, head_dim] of slots 0 .. rows - 1."""
        keys, values = self._storage[layer, :rows, :length].unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def copy(self, source: int, target: int, length: int) -> None:
        """Let slot ``target`` have the first ``length`` positions of slot ``source``."""
        self._storage[:, target, :length] = self._storage[:, source, :length]
