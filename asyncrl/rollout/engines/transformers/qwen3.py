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
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3ForCausalLM, Qwen3VLForConditionalGeneration
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

from asyncrl.algo.logprobs import head_logits, ready_kernels
from asyncrl.log import get_logger
from asyncrl.rollout.engines.transformers.forward import causal_bias
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures, VisionTower, mrope

# ── layer kernels ──────────────────────────────────────────────────────────────────────────────
# Elementwise parts of a decoder layer: in torch's operations, or as two kernels of Triton, which torch's builds for
# GPUs bring along.
#
#     q, k, v ─ rms(q, k) · norm ─ rope ─▶ q, k in place; k, v in the cache      six operations, or one kernel
#     gate, up ─▶ silu(gate) · up                                                two operations, or one kernel
#
# A decode step launches hundreds of kernels that take microseconds each, so that their number is its time. Triton is
# taken where it is installed and gives what torch gives: it is tried when a model is loaded.
#
# Shapes: N tokens, Q and K query and key-value heads, D head_dim, I intermediate size.

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = None

log = get_logger()

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of tokens, each [N, 1, D]; the first half of the sines is negated, so that `roll` rotates."""
Launch = Callable[..., object]
"""Launches a kernel: (kernel, grid, arguments by name)."""
BLOCK = 1024
"""Elements of a row that one program of the gate computes."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.01}
"""Rounding of the dtype, relative to the largest value: torch rounds between its operations, and Triton at the end."""


class LayerKernels:
    """
    Torch's operations.

    Args:
        kv_heads: K, of ``[N, Q + 2K, D]`` heads: queries, keys, values.
        eps: Of the norms of heads.
    """

    def __init__(self, kv_heads: int, eps: float) -> None:
        self._kv_heads, self._eps = kv_heads, eps

    def place(self, heads: Tensor, norms: Tensor, rotation: Rotation, cache: Tensor, cells: Tensor) -> None:
        """
        Normalise and rotate queries and keys in place, and store keys and values.

        Args:
            heads: [N, Q + 2K, D].
            norms: [Q + K, D] weights of the norms.
            cache: [cells, 2 * K * D], keys first.
            cells: [N] distinct.
        """
        cos, sin = rotation
        rotated = heads[:, : len(norms)]
        normed = F.rms_norm(rotated, rotated.shape[-1:], eps=self._eps).mul_(norms)
        torch.addcmul(normed * cos, normed.roll(heads.shape[-1] // 2, -1), sin, out=rotated)
        cache.index_copy_(0, cells, heads[:, -2 * self._kv_heads :].flatten(1))

    def gate(self, gate_up: Tensor) -> Tensor:
        """[N, I] product of the second half of [N, 2I] with the sigmoid linear unit of the first."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class TritonKernels(LayerKernels):
    """One kernel for each part."""

    def __init__(self, kv_heads: int, eps: float, launch: Launch | None = None) -> None:
        super().__init__(kv_heads, eps)
        self._launch = launch or _launched

    def place(self, heads: Tensor, norms: Tensor, rotation: Rotation, cache: Tensor, cells: Tensor) -> None:
        cos, sin = (part.contiguous() for part in rotation)
        num_heads, head_dim = heads.shape[1:]
        arguments: dict[str, Any] = {"heads": heads, "norms": norms, "cos": cos, "sin": sin}
        arguments |= {"cache": cache, "cells": cells}
        arguments |= {"row": heads.stride(0), "cell": cache.stride(0), "eps": self._eps}
        sizes = {"rotated": len(norms), "queries": num_heads - 2 * self._kv_heads, "half": head_dim // 2}
        self._launch("place", (len(heads), num_heads), arguments | sizes)

    def gate(self, gate_up: Tensor) -> Tensor:
        size = gate_up.shape[-1] // 2
        out = gate_up.new_empty(len(gate_up), size)
        arguments = {"gate_up": gate_up, "out": out, "size": size, "block": BLOCK}
        self._launch("gate", (len(gate_up), -(-size // BLOCK)), arguments)
        return out


def layer_kernels(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int], eps: float, launch: Launch | None = None
) -> LayerKernels:
    """
    The faster of both that work on a device: Triton is tried, and what it gives compared.

    Args:
        heads: Q, K, D.
        launch: Launches kernels in place of Triton.
    """
    plain = LayerKernels(heads[1], eps)
    if not (launch or device.type == "cuda"):
        return plain
    fast = TritonKernels(heads[1], eps, launch)
    try:
        if triton is None and launch is None:
            reason = "Triton is not installed"
        elif _agree(plain, fast, device, dtype, heads):
            return fast
        else:
            reason = "Triton gives other values"
    except Exception as error:  # noqa: BLE001  a compiler may fail in any way, and torch has the operations
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    log.warning("engine.slower", device=str(device), torch=torch.__version__, reason=reason)
    return plain


@torch.inference_mode()
def _agree(
    plain: LayerKernels, fast: LayerKernels, device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int]
) -> bool:
    """True if both give the same for a few tokens."""
    queries, keys, size = heads
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    qkv, norms, gate_up = random(3, queries + 2 * keys, size), random(queries + keys, size), random(3, 2 * BLOCK + 6)
    rotation, cells = (random(3, 1, size), random(3, 1, size)), torch.tensor([4, 0, 3], device=device)
    found = []
    for kernels in (plain, fast):
        own, cache = qkv.clone(), torch.zeros(5, 2 * keys * size, device=device, dtype=dtype)
        kernels.place(own, norms, rotation, cache, cells)
        found.append([own, cache, kernels.gate(gate_up)])
    return all(
        bool((one.float() - other.float()).abs().max() <= TOLERANCE[dtype] * one.float().abs().max())
        for one, other in zip(*found, strict=True)
    )


def _launched(kernel: str, grid: tuple[int, int], arguments: dict[str, Any]) -> object:
    return _KERNELS[kernel][grid](**arguments)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _place(  # type: ignore[no-untyped-def]  # noqa: PLR0917  Triton's arguments have no types
        heads,
        norms,
        cos,
        sin,
        cache,
        cells,
        row,
        cell,
        eps,
        rotated: tl.constexpr,
        queries: tl.constexpr,
        half: tl.constexpr,
    ):
        """One head of one token."""
        token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        columns = tl.arange(0, half)
        source = heads + token * row + head * 2 * half + columns
        first = tl.load(source).to(tl.float32)
        second = tl.load(source + half).to(tl.float32)
        if head < rotated:
            squares = tl.sum(first * first) + tl.sum(second * second)
            scale = 1 / tl.sqrt(squares / (2 * half) + eps)
            norm, angle = norms + head * 2 * half + columns, token * 2 * half + columns
            normed = first * scale * tl.load(norm).to(tl.float32)
            rolled = second * scale * tl.load(norm + half).to(tl.float32)
            first = normed * tl.load(cos + angle).to(tl.float32) + rolled * tl.load(sin + angle).to(tl.float32)
            second = rolled * tl.load(cos + angle + half).to(tl.float32)
            second += normed * tl.load(sin + angle + half).to(tl.float32)
            tl.store(source, first.to(heads.dtype.element_ty))
            tl.store(source + half, second.to(heads.dtype.element_ty))
        if head >= queries:
            target = cache + tl.load(cells + token) * cell + (head - queries) * 2 * half + columns
            tl.store(target, first.to(cache.dtype.element_ty))
            tl.store(target + half, second.to(cache.dtype.element_ty))

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate(gate_up, out, size: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """A block of one row."""
        token, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
        source = gate_up + token * 2 * size + columns
        gate = tl.load(source, mask=columns < size).to(tl.float32)
        up = tl.load(source + size, mask=columns < size).to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
        tl.store(out + token * size + columns, (silu * up).to(out.dtype.element_ty), mask=columns < size)

    _KERNELS = {"place": _place, "gate": _gate}


# ── forward passes ─────────────────────────────────────────────────────────────────────────────

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
        attentions = [layer.self_attn for layer in decoder.layers]
        self._head_norms = _fuse([norm.weight for one in attentions for norm in (one.q_norm, one.k_norm)])
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
        cells, attention = attend
        with ready_kernels(hidden.device):
            norms = self._head_norms.view(len(self._layers), 2, -1)[:, self._head_kind]
            for index, layer in enumerate(self._layers):
                heads = F.linear(self._rms(hidden, layer.input_norm), layer.qkv)
                heads = heads.view(len(hidden), -1, self.cache.head_dim)
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
