"""
One forward pass of a model over the KV cache: what the slot table needs of a model, and the way that fits most.

    prefill   tokens 0 .. P - 1 of some slots    ─▶ their keys and values
    step      one token of each running slot     ─▶ logits

`ModelForward` runs any decoder of transformers whose layers all attend to everything before them. A model family with
its own `Forward` (see `qwen3`) decodes small models several times faster: it spends its time in kernels.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.kv_cache import KVCache


class Forward(Protocol):
    """A model that reads and writes one `KVCache`."""

    @property
    def cache(self) -> KVCache:
        """Keys and values."""

    def prefill(self, slots: Tensor, ids: Tensor, lengths: Tensor, /) -> None:
        """
        Compute keys and values of whole prefixes.

        Padding goes to the right: causal attention keeps it away from real tokens, and if its keys are stored they are
        overwritten before anyone reads them.

        Args:
            slots: [B] where to.
            ids: [B, P] tokens of positions 0 .. P - 1.
            lengths: [B] how many of them are real, 0 .. P.
        """

    def step(self, ids: Tensor, positions: Tensor, cells: Tensor, length: int, /) -> Tensor:
        """
        Feed one token to each of the slots 0 .. n - 1.

        Args:
            ids: [n] tokens.
            positions: [n] where each stands.
            cells: [n] ``slot * cache.positions + position``, where its keys and values go.
            length: Positions to attend to; larger than every position.

        Returns:
            [n, V] logits of the token that follows.
        """


class ModelForward:
    """The general path: the model's own forward, with a cache layer that writes and reads the slots."""

    def __init__(self, model: PreTrainedModel, cache: KVCache) -> None:
        self.cache = cache
        self._model = model
        self._layers = [_SlotLayer(cache, layer) for layer in range(model.config.get_text_config().num_hidden_layers)]
        self._past = Cache(layers=list(self._layers))
        self._columns = torch.arange(cache.positions, device=model.device)

    def prefill(self, slots: Tensor, ids: Tensor, lengths: Tensor) -> None:
        """As `Forward.prefill`. Computes the padding too: this model takes rectangles."""
        columns = self._columns[: ids.shape[1]]
        self._aim(_Prefix((slots[:, None] * self.cache.positions + columns).flatten()))
        self._model.base_model(
            input_ids=ids,
            position_ids=columns.expand_as(ids),
            attention_mask=causal_bias(columns, columns, self._model.dtype).expand(len(ids), 1, -1, -1),
            past_key_values=self._past,
            use_cache=True,
        )

    def step(self, ids: Tensor, positions: Tensor, cells: Tensor, length: int) -> Tensor:
        """As `Forward.step`."""
        self._aim(_Step(cells, length))
        output = self._model(
            input_ids=ids[:, None],
            position_ids=positions[:, None],
            attention_mask=causal_bias(positions, self._columns[:length], self._model.dtype)[:, None, None],
            past_key_values=self._past,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _aim(self, target: "_Prefix | _Step") -> None:
        for layer in self._layers:
            layer.target = target


class _Prefix(NamedTuple):
    """Keys and values that come are whole rows, and attend to one another."""

    cells: Tensor


class _Step(NamedTuple):
    """Keys and values that come are one position a row; attention then reads ``length`` of them."""

    cells: Tensor
    length: int


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """transformers' view of one layer of a `KVCache`."""

    def __init__(self, cache: KVCache, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._layer = layer
        self.target: _Prefix | _Step = _Step(torch.empty(0), 1)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store [B, kv_heads, P, head_dim] and give back what the queries may attend to."""
        keys_values = torch.stack((key_states.transpose(1, 2), value_states.transpose(1, 2)), dim=2)
        self._cache.write(self._layer, self.target.cells, keys_values.flatten(0, 1).flatten(1))
        match self.target:
            case _Prefix():
                return key_states, value_states
            case _Step(_, length):
                return self._cache.read(self._layer, len(keys_values), length)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the cache was allocated before."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset). Asked only where no four-dimensional mask is passed, and one always is."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Positions that lie before the ones being written."""
        return self.target.length - 1 if isinstance(self.target, _Step) else 0

    def get_max_length(self) -> int:
        """Positions of a slot."""
        return self._cache.positions


def causal_bias(queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., len(keys)] what to add to attention scores: minus infinity where the key comes after the query."""
    bias = torch.zeros((*queries.shape, len(keys)), dtype=dtype, device=keys.device)
    return bias.masked_fill_(keys > queries[..., None], -torch.inf)


def check_attention(config: PreTrainedConfig, positions: int) -> None:
    """
    Refuse models whose attention a slot cannot hold.

    Raises:
        ConfigError: A layer is not full attention, a window is shorter than a slot, or positions run out.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    is_windowed = "sliding_attention" in kinds or (window and not getattr(config, "layer_types", None))
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(f"the model has layers of {sorted(unknown)}: this engine serves full attention only")
    if is_windowed and getattr(config, "use_sliding_window", True) and window and window < positions:
        raise ConfigError(
            f"the model attends to {window} tokens, but a slot holds {positions} (prompt and completion); shorten "
            f"data.max_prompt_tokens or sampling.max_tokens"
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest and positions > longest:
        raise ConfigError(
            f"a slot holds {positions} tokens (prompt and completion), but the model knows {longest} positions; "
            f"shorten data.max_prompt_tokens or sampling.max_tokens"
        )
