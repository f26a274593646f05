"""
Attention over a row in which sequences lie end to end: each token sees what the row says it does, and nothing else.

    row              a a a a b b c c           keys
    one call each    └──┬──┘ └──┬──┘         a ▚· ·        No mask of the row and no padding of it: memory grows with
                        │       │   queries  b · ▚ ·       the row, not with its square.
                     1 x 4   2 x 2           c · · ▚

On a CUDA device with a half-width dtype one kernel takes the row as it is. Elsewhere neighbours of one length go
through torch's attention as a batch.

Models are given it by name, `PACKED`, and get the `Row` as a keyword argument.
"""

from inspect import signature

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

from asyncrl.trainer.row import Piece, Row

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, [heads, W, D] each; the last two may have fewer heads."""

PACKED = "asyncrl_packed"
HAS_KERNEL = "enable_gqa" in signature(varlen_attn).parameters
"""The first releases of torch that had it knew neither windows nor key heads that are shared."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    row: Row | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """
    What transformers calls in each layer.

    Args:
        module: Not read.
        query: [1, heads, W, D].
        key: [1, kv_heads, W, D].
        value: [1, kv_heads, W, D].
        attention_mask: Not read; transformers makes none for this attention.
        scaling: Of the scores; None is 1 / √D.
        sliding_window: Keys a query sees, itself included; None is all before it.
        row: Who sees whom; None is one sequence. Handed to the model as a keyword argument, which passes it on.

    Returns:
        [1, W, heads, D], and no scores.
    """
    row = row or Row([Piece(query.shape[2])], query.device)
    if query.is_cuda and HAS_KERNEL and (dtype := _half(value)):
        return _in_one((query[0], key[0], value[0]), row, scaling, sliding_window, dtype)[None], None
    return _by_run((query[0], key[0], value[0]), row, scaling, sliding_window)[None], None


def pack(model: PreTrainedModel) -> None:
    """Make every layer of ``model`` attend this way. Registers `PACKED` with transformers."""
    AttentionInterface.register(PACKED, packed_attention)
    model.set_attn_implementation(PACKED)


def _in_one(heads: Heads, row: Row, scaling: float | None, window: int | None, dtype: torch.dtype) -> Tensor:
    """
    [W, heads, D] by a kernel that knows where pieces end, and counts "before" from the last query and the last key.

    Source:
        FlashAttention 2.1, whose causal masks lie in the lower right corner where keys are more than queries.
    """
    queries, keys, values = (part.to(dtype) for part in heads)
    longest, most_keys = row.longest
    out = varlen_attn(
        queries.transpose(0, 1),
        _at(keys, row.keys).transpose(0, 1),
        _at(values, row.keys).transpose(0, 1),
        row.ends,
        row.key_ends,
        longest,
        most_keys,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(out, Tensor)  # without return_aux
    return out


def _by_run(heads: Heads, row: Row, scaling: float | None, window: int | None) -> Tensor:
    """[W, heads, D], each run as one batch."""
    queries, keys, values = heads
    cuts, key_cuts = [run.num_tokens for run in row.runs], [run.num_keys for run in row.runs]
    parts = (
        torch.split(queries, cuts, 1),
        torch.split(_at(keys, row.run_keys), key_cuts, 1),
        torch.split(_at(values, row.run_keys), key_cuts, 1),
    )
    pieces = []
    for run, query, key, value in zip(row.runs, *parts, strict=True):
        mask = run.mask(window)
        out = F.scaled_dot_product_attention(
            _batched(query, len(run)),
            _batched(key, len(run)),
            _batched(value, len(run)),
            mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)


def _batched(part: Tensor, count: int) -> Tensor:
    """[count, heads, tokens, D] of [heads, count · tokens, D]."""
    return part.view(len(part), count, -1, part.shape[-1]).transpose(0, 1)


def _at(part: Tensor, places: Tensor) -> Tensor:
    """
    [heads, K, D] of [heads, W, D].

    As an embedding: its gradient sums what comes back to a place that is seen often in one kernel.
    """
    rows = part.transpose(0, 1)
    return F.embedding(places, rows.flatten(1)).view(-1, *rows.shape[1:]).transpose(0, 1)


def _half(value: Tensor) -> torch.dtype | None:
    """What products are in, if that is half-width: under autocast, norms hand out float32 all the same."""
    is_cast = torch.is_autocast_enabled(value.device.type)
    dtype = torch.get_autocast_dtype(value.device.type) if is_cast else value.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None
