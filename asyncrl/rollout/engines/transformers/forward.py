"""
Forward passes of a model over the KV cache, as the slot table needs them.

    prefill   tokens 0 .. P - 1 of some slots    ─▶ keys and values
    step      one token of each running slot     ─▶ logits

`ModelForward` runs any transformers decoder whose layers all use full attention. A model family with its own `Forward`
(see `qwen3`) decodes small models several times faster, because it spends its time in kernels.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from asyncrl.algo.logprobs import head_logits, ready_kernels
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures
from asyncrl.weights.contents.architecture import check_positions

GROUPED = "asyncrl_grouped"
"""Name of `grouped_attention` in transformers."""


class Forward(Protocol):
    """A model that reads and writes one `KVCache`."""

    is_static: ClassVar[bool]
    """True if the kernels of a step depend on its shapes alone, so that it can be a CUDA graph."""

    @property
    def cache(self) -> KVCache: ...

    def prefill(
        self, slots: Tensor, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None] = (), /
    ) -> None:
        """
        Compute keys and values of whole prefixes: [B, P] tokens at positions 0 .. P - 1 of the [B] slots.

        Row b has ``lengths[b]`` tokens and padding on the right. Causal attention hides the padding from real tokens,
        and its keys, if stored at all, are overwritten before they are read. ``placed`` has the pictures of each row;
        it is empty if no row has any.
        """

    def extend(self, slots: Tensor, ids: Tensor, starts: Tensor, lengths: Tensor, /) -> None:
        """
        Compute keys and values of tokens ``starts[b] .. lengths[b] - 1``, as `prefill` does without pictures.

        Those before are in the slots already; they may be computed again.
        """

    def step(
        self, ids: Tensor, positions: Tensor, cells: Tensor, length: int, rotary: Tensor | None = None, /
    ) -> Tensor:
        """
        Feed one token to each of the slots 0 .. n - 1.

        Args:
            ids: [n] tokens.
            positions: [n] position of each token, all below ``length``, the number of positions to attend to.
            cells: [n] ``slot * cache.positions + position``, the cell for its key and value.
            rotary: [n] positions for the rotary embedding, where pictures moved them; None if they are ``positions``.

        Returns:
            [n, V] logits of the next token.
        """


class ModelForward:
    """A `Forward` for any model: its own forward pass, with a cache layer that reads and writes the slots."""

    is_static: ClassVar[bool] = False  # a model may ask its device for numbers

    def __init__(self, model: PreTrainedModel, cache: KVCache) -> None:
        self.cache = cache
        self._model = model
        self._layers = [_SlotLayer(cache, layer) for layer in range(model.config.get_text_config().num_hidden_layers)]
        self._past = Cache(layers=list(self._layers))
        self._columns = torch.arange(cache.positions, device=model.device)
        if model.config.get_text_config()._attn_implementation == "sdpa":
            AttentionInterface.register(GROUPED, grouped_attention)
            model.get_decoder().set_attn_implementation(GROUPED)
        if type(head := model.get_output_embeddings()) is nn.Linear:  # the model may still cap or scale its logits
            head.forward = lambda input: head_logits(input, head.weight, head.bias)  # type: ignore[method-assign]  # noqa: A006
        self._try()

    def prefill(
        self, slots: Tensor, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None] = ()
    ) -> None:
        # Padding is computed too: a model's own forward takes rectangles.
        columns = self._columns[: ids.shape[1]]
        self._set_target((slots[:, None] * self.cache.positions + columns).flatten(), None)
        inputs = self._inputs(ids, lengths, placed)
        with ready_kernels(self._model.device):
            self._model.base_model(
                **inputs,
                attention_mask=causal_bias(columns, columns, self._model.dtype).expand(len(ids), 1, -1, -1),
                past_key_values=self._past,
                use_cache=True,
            )

    def extend(self, slots: Tensor, ids: Tensor, starts: Tensor, lengths: Tensor) -> None:
        self.prefill(slots, ids, lengths)

    def step(self, ids: Tensor, positions: Tensor, cells: Tensor, length: int, rotary: Tensor | None = None) -> Tensor:
        self._set_target(cells, length)
        with ready_kernels(self._model.device):
            output = self._model(
                input_ids=ids[:, None],
                position_ids=self._position_ids(positions if rotary is None else rotary),
                attention_mask=causal_bias(positions, self._columns[:length], self._model.dtype)[:, None, None],
                past_key_values=self._past,
                use_cache=True,
            )
        logits: Tensor = output.logits[:, -1]
        return logits

    @torch.inference_mode()
    def _try(self) -> None:
        """Raise `ConfigError` if the model's keys and values are not those of the cache, or it lacks its arguments."""
        first = torch.zeros(1, dtype=torch.int64, device=self._model.device)
        try:
            self.prefill(first, first[None], first + 1)
        except Exception as error:  # any model may be given, and fails in its own way
            raise ConfigError(
                f"{type(self._model).__name__} does not keep its keys and values as this engine does; set "
                f'rollout.engine = "vllm"'
            ) from error

    def _inputs(self, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None]) -> dict[str, Any]:
        """Arguments of the model for the tokens of a prefill."""
        return {"input_ids": ids, "position_ids": self._columns[: ids.shape[1]].expand_as(ids)}

    def _position_ids(self, rotary: Tensor) -> Tensor:
        """Positions of a step, [n, 1] as the model takes them."""
        return rotary[:, None]

    def _set_target(self, cells: Tensor, length: int | None) -> None:
        for layer in self._layers:
            layer.cells, layer.length = cells, length
        if self.cache.routes is not None:
            self.cache.routes.cells = cells


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """Adapter of one `KVCache` layer to the cache interface of transformers."""

    def __init__(self, cache: KVCache, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._layer = layer
        self.cells = torch.empty(0)
        """[N] cells for the next keys and values."""
        self.length: int | None = None
        """Positions that a step attends to; None in a prefill, whose rows attend to themselves."""
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store [B, kv_heads, P, head_dim] and return the keys and values to attend to."""
        keys_values = torch.stack((key_states.transpose(1, 2), value_states.transpose(1, 2)), dim=2)
        self._cache.write(self._layer, self.cells, keys_values.flatten(0, 1).flatten(1))
        if self.length is None:
            return key_states, value_states
        return self._cache.read(self._layer, len(keys_values), self.length)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass  # The cache is allocated already.

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset). Unused: transformers calls it only without a four-dimensional mask."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self.length - 1 if self.length else 0

    def get_max_length(self) -> int:
        return self._cache.positions


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """
    transformers' own "sdpa", which in a step does not repeat keys and values for the query heads that share them.

    Query heads that share a key-value head become several queries of it. To repeat what is cached would copy more than
    a step reads otherwise.
    """
    rows, heads, num_queries, head_dim = query.shape
    if num_queries > 1:
        own: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)[0]
        return own, None
    folded = query.reshape(rows, key.shape[1], -1, head_dim)
    attended = F.scaled_dot_product_attention(folded, key, value, attention_mask, scale=scaling)
    return attended.reshape(rows, 1, heads, -1), None


def causal_bias(queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., len(keys)] bias for attention scores: minus infinity where the key comes after the query, else 0."""
    bias = torch.zeros((*queries.shape, len(keys)), dtype=dtype, device=keys.device)
    return bias.masked_fill_(keys > queries[..., None], -torch.inf)


def check_attention(config: PreTrainedConfig, positions: int) -> None:
    """Raise `ConfigError` unless every layer can attend to a whole slot of this many positions."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    is_windowed = "sliding_attention" in kinds or (window and not getattr(config, "layer_types", None))
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"the model has layers of {sorted(unknown)}, and this engine serves full attention only; set "
            f'rollout.engine = "vllm"'
        )
    if is_windowed and getattr(config, "use_sliding_window", True) and window and window < positions:
        raise ConfigError(
            f"the model attends to {window} tokens, but a slot holds {positions} (prompt and completion); shorten "
            f"data.max_prompt_tokens or sampling.max_tokens"
        )
    check_positions(config, positions)
