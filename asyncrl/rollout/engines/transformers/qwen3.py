"""
Forward pass of dense Qwen3 models with as few kernels as torch allows.

    x ─rms─ qkv ─[rms(q,k) ─ rope ─▶ cache]─▶ attention ─ o ─(+x)─ rms ─ gate,up ─[silu·mul]─ down ─(+x)─▶

What is in brackets is `LayerKernels`.

The decoder of a Qwen3-VL is such a model too: `qwen3_vl` adds its pictures.

Projections with the same input are fused into one matrix. The model's parameters become views of that matrix, so new
weights written into the parameters take effect here, and there is no second copy.

Shapes: N tokens (rows of a step, or rows times positions of a prefill), H hidden, D head_dim, Q and K query and
key-value heads.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3ForCausalLM, Qwen3VLForConditionalGeneration
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

from asyncrl.algo.logprobs import head_logits, ready_kernels
from asyncrl.rollout.engines.transformers.forward import causal_bias
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.layer_kernels import LayerKernels, Rotation, layer_kernels
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures, VisionTower, mrope

Attend = tuple[Tensor, Callable[[int, Tensor], Tensor | None]]
"""Cells [N] for keys and values; and (layer, q, k, v heads [N, Q + 2K, D]) → [N, Q * D], None if it is not needed."""
Add = Callable[[int, Tensor], None]
"""Function of a layer's index and output [N, H] that may add to the output in place."""


def fits(model: PreTrainedModel) -> bool:
    """True if `Qwen3Forward` gives the same logits as the model itself."""
    return type(model) is Qwen3ForCausalLM and model.config.model_type == "qwen3" and fits_decoder(model)


def fits_decoder(model: PreTrainedModel) -> bool:
    """True if the options of a model's decoder are those that `Qwen3Forward` knows."""
    config = model.config.get_text_config()
    return (
        config.hidden_act == "silu" and not config.attention_bias and config.rope_parameters["rope_type"] == "default"
    )


class Qwen3Forward:
    """A `Forward`. Moves the model's projections and head norms into shared storage."""

    is_static: ClassVar[bool] = True

    def __init__(self, model: PreTrainedModel, cache: KVCache, kernels: LayerKernels | None = None) -> None:
        """``kernels`` are those to use in place of the device's fastest."""
        decoder, config = model.get_decoder(), model.config.get_text_config()
        self.cache = cache
        self._embed, self._head = decoder.embed_tokens, model.lm_head
        self._norm, self._rotary = decoder.norm, decoder.rotary_emb
        self._layers = [_Layer(layer) for layer in decoder.layers]
        self._query_heads: int = config.num_attention_heads
        self._eps: float = config.rms_norm_eps
        heads = [0] * self._query_heads + [1] * cache.kv_heads
        self._head_kind = torch.tensor(heads, device=model.device)
        self._head_norms = _fuse([n for layer in decoder.layers for n in _head_norms(layer)])
        self._columns = torch.arange(cache.positions, device=model.device)
        self._cos, self._sin = self._rotations(self._columns[None])
        sizes = (self._query_heads, cache.kv_heads, cache.head_dim)
        self._kernels = kernels or layer_kernels(model.device, model.dtype, sizes, self._eps)

    def prefill(
        self, slots: Tensor, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None] = ()
    ) -> None:
        """See `Forward.prefill`. Only attention computes the padding; the last layer stops at its keys and values."""
        real = self._real(ids, lengths)
        self._run(self._embedded(ids[real]), self._at(real[1]), self._prefilling(slots, real, ids.shape))

    def _real(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Row and position of every token except padding, each [N]."""
        row, position = (self._columns[: ids.shape[1]] < lengths[:, None]).nonzero(as_tuple=True)
        return row, position

    def _prefilling(self, slots: Tensor, real: tuple[Tensor, Tensor], shape: torch.Size) -> Attend:
        """Attention of a prefill, in which each row attends to itself only."""
        row, position = real
        cells = slots[row] * self.cache.positions + position
        kinds = [self._query_heads, self.cache.kv_heads, self.cache.kv_heads]
        grid = self._cos.new_zeros(*shape, sum(kinds), self.cache.head_dim)

        def attend(layer: int, heads: Tensor) -> Tensor | None:
            if layer == len(self._layers) - 1:
                return None
            grid[real] = heads
            queries, keys, values = torch.split(grid.transpose(1, 2), kinds, dim=1)
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
            return attended.transpose(1, 2)[real].flatten(1)

        return cells, attend

    def extend(self, slots: Tensor, ids: Tensor, starts: Tensor, lengths: Tensor) -> None:
        """See `Forward.extend`. Only the new tokens are computed; they read those before from the cache."""
        positions = starts[:, None] + self._columns[: ids.shape[1]]
        row, column = (positions < lengths[:, None]).nonzero(as_tuple=True)
        attend = self._extending(slots, (row, column), positions[:, : int(column.max()) + 1], ids.shape[1])
        at = positions[row, column]
        self._run(self._embedded(ids[row, at]), self._at(at), attend)

    def _extending(self, slots: Tensor, real: tuple[Tensor, Tensor], positions: Tensor, length: int) -> Attend:
        """Attention of new tokens, [B, W] of them at these positions, to all cached ones up to them."""
        cells = slots[real[0]] * self.cache.positions + positions[real]
        bias = causal_bias(positions, self._columns[:length], self._cos.dtype)[:, None]

        def attend(layer: int, heads: Tensor) -> Tensor | None:
            if layer == len(self._layers) - 1:
                return None
            queries = self._cos.new_zeros(*positions.shape, self._query_heads, self.cache.head_dim)
            queries[real] = heads[:, : self._query_heads]
            keys, values = self.cache.gather(layer, slots, length)
            attended = F.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, bias, enable_gqa=True)
            return attended.transpose(1, 2)[real].flatten(1)

        return cells, attend

    def step(self, ids: Tensor, positions: Tensor, cells: Tensor, length: int, rotary: Tensor | None = None) -> Tensor:
        rows = len(ids)
        bias = causal_bias(positions, self._columns[:length], self._cos.dtype)[:, None, None]
        # Query heads that share a key-value head become several queries of it: one wider product, no repeated keys.
        folded = (rows, self.cache.kv_heads, self._query_heads // self.cache.kv_heads, self.cache.head_dim)

        def attend(layer: int, heads: Tensor) -> Tensor:
            queries = heads[:, : self._query_heads].view(folded)
            keys, values = self.cache.read(layer, rows, length)
            return F.scaled_dot_product_attention(queries, keys, values, bias).reshape(rows, -1)

        hidden = self._run(self._embedded(ids), self._at(positions if rotary is None else rotary), (cells, attend))
        return head_logits(self._rms(hidden, self._norm), self._head.weight)

    def _embedded(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._embed.weight)

    def _at(self, positions: Tensor) -> Rotation:
        return self._cos[positions][:, None], self._sin[positions][:, None]

    def _run(self, hidden: Tensor, rotation: Rotation, attend: Attend, add: Add | None = None) -> Tensor:
        """[N, H] output of the last layer before the final norm; meaningless if ``attend`` returned None."""
        with ready_kernels(hidden.device):
            return self._layered(hidden, rotation, attend, add)

    def _layered(self, hidden: Tensor, rotation: Rotation, attend: Attend, add: Add | None) -> Tensor:
        cells, attention = attend
        norms = self._head_norms.view(len(self._layers), 2, -1)[:, self._head_kind]
        for index, layer in enumerate(self._layers):
            heads = F.linear(self._rms(hidden, layer.input_norm), layer.qkv).view(len(hidden), -1, self.cache.head_dim)
            self._kernels.place(heads, norms[index], rotation, self.cache.cells(index), cells)
            attended = attention(index, heads)
            if attended is None:
                break
            hidden = torch.addmm(hidden, attended, layer.out.weight.t())
            gated = self._kernels.gate(F.linear(self._rms(hidden, layer.mlp_norm), layer.gate_up))
            hidden = torch.addmm(hidden, gated, layer.down.weight.t())
            if add is not None:
                add(index, hidden)
        return hidden

    def _rms(self, hidden: Tensor, norm: Qwen3RMSNorm) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, self._eps)

    def _rotations(self, positions: Tensor) -> Rotation:
        """Cosines and sines, each [N, D], of positions [1, N] or, with a place in a picture, [3, 1, N]."""
        cos, sin = self._rotary(self._embed.weight, positions)
        half = sin.shape[-1] // 2
        return cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)


class _Layer:
    """Matrices of one decoder layer; those with the same input are fused."""

    def __init__(self, layer: Qwen3DecoderLayer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = _fuse([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        self.gate_up = _fuse([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.out, self.down = attention.o_proj, mlp.down_proj
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm


def _head_norms(layer: Qwen3DecoderLayer) -> list[nn.Parameter]:
    return [layer.self_attn.q_norm.weight, layer.self_attn.k_norm.weight]


def _fuse(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Stack parameters along their first dimension, and make each a view of its part."""
    fused = torch.cat([parameter.detach() for parameter in parameters])
    parts = torch.split(fused, [len(parameter) for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data = part
    return fused


# ── qwen3 vl ──────────────────────────────────────────────────────────────────────────────────
# Forward pass of Qwen3-VL models: that of Qwen3, with pictures in the prefill.
#
#     pictures ─ vision tower ─▶ in place of the image tokens' embeddings
#                           └──▶ added to the output of the first layers (Meng et al. 2024, arXiv:2406.04334)
#
# A token has three rotary positions: time, row and column. For a text token they are equal, so a decoding step is
# that of a text model, with the position shifted by the pictures before it.


def fits_vl(model: PreTrainedModel) -> bool:
    """True if `Qwen3VLForward` gives the same logits as the model itself."""
    return type(model) is Qwen3VLForConditionalGeneration and fits_decoder(model)


class Qwen3VLForward(Qwen3Forward):
    """`Forward` for prompts with and without pictures."""

    def __init__(self, model: PreTrainedModel, cache: KVCache, tower: VisionTower) -> None:
        super().__init__(model, cache)
        self._tower = tower
        self._image_token_id: int = model.config.image_token_id

    def prefill(
        self, slots: Tensor, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None] = ()
    ) -> None:
        if not placed:
            super().prefill(slots, ids, lengths)
            return
        row, position = real = self._real(ids, lengths)
        features = self._tower.see(placed)
        (at,) = (ids[real] == self._image_token_id).nonzero(as_tuple=True)
        hidden = self._embedded(ids[real]).index_copy_(0, at, features.embeddings.to(self._cos.dtype))
        cos, sin = self._rotations(mrope(placed, ids.shape[1], ids.device)[:, row, position][:, None])

        def add(layer: int, output: Tensor) -> None:
            if layer < len(features.deepstack):
                output.index_add_(0, at, features.deepstack[layer].to(output.dtype))

        self._run(hidden, (cos[:, None], sin[:, None]), self._prefilling(slots, real, ids.shape), add)

    def _rotations(self, positions: Tensor) -> Rotation:
        return super()._rotations(positions.expand(3, 1, -1))  # before transformers 5.19, only so
