"""
Attention over a row that holds many sequences: each sees itself, and nobody else.

    places           a a a a b b c c           keys
    one call each    └──┬──┘ └──┬──┘         a ▚· ·        No mask and no padding: memory grows with the sequences, not
                        │       │   queries  b · ▚ ·       with the square of the row.
                     1 x 4   2 x 2           c · · ▚

On a CUDA device with a half-width dtype one kernel takes all sequences as they are. Elsewhere those of one length go
through torch's attention as a batch.

Models are given it by name, `PACKED`, and get the `Row` as a keyword argument.
"""

from collections.abc import Sequence
from inspect import signature
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

from asyncrl.trainer.packing.row import Row

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, [K, heads, D] each; the last two may have fewer heads."""

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
    row = row or Row([np.arange(query.shape[2])], query.device)
    queries, keys, values = (_at(part[0].transpose(0, 1), row.places) for part in (query, key, value))
    if query.is_cuda and HAS_KERNEL and (dtype := _half(value)):
        out = _in_one((queries, keys, values), row, scaling, sliding_window, dtype)
    else:
        out = _by_length((queries, keys, values), row.lengths, scaling, sliding_window)
    return _at(out, row.firsts)[None], None


def pack(model: PreTrainedModel) -> None:
    """Make every layer of ``model`` attend this way. Registers `PACKED` with transformers."""
    AttentionInterface.register(PACKED, packed_attention)
    model.set_attn_implementation(PACKED)


def _at(part: Tensor, places: Tensor) -> Tensor:
    """
    [K, heads, D] of [W, heads, D].

    As an embedding: its gradient sums in one kernel what comes back to a place from many sequences.
    """
    return F.embedding(places, part.flatten(1)).view(-1, *part.shape[1:])


def _in_one(heads: Heads, row: Row, scaling: float | None, window: int | None, dtype: torch.dtype) -> Tensor:
    """[K, heads, D] by a kernel that knows where sequences end."""
    queries, keys, values = (part.to(dtype) for part in heads)
    longest = max(row.lengths)
    out = varlen_attn(
        queries,
        keys,
        values,
        row.ends,
        row.ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(out, Tensor)  # without return_aux
    return out


def _by_length(heads: Heads, lengths: Sequence[int], scaling: float | None, window: int | None) -> Tensor:
    """[K, heads, D], runs of sequences of one length as one batch."""
    runs = [(length, len(list(run))) for length, run in groupby(lengths)]
    cuts = [length * count for length, count in runs]
    queries, keys, values = (torch.split(part, cuts) for part in heads)
    pieces = []
    for (length, count), query, key, value in zip(runs, queries, keys, values, strict=True):
        mask = _band(length, window, query.device) if window and window < length else None
        out = F.scaled_dot_product_attention(
            _batched(query, count),
            _batched(key, count),
            _batched(value, count),
            mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)


def _batched(part: Tensor, count: int) -> Tensor:
    """[count, heads, length, D] of [count · length, heads, D]."""
    return part.view(count, -1, *part.shape[1:]).transpose(1, 2)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length] bool, True where a query sees a key: itself and ``window - 1`` before it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)


def _half(value: Tensor) -> torch.dtype | None:
    """What products are in, if that is half-width: under autocast, norms hand out float32 all the same."""
    is_cast = torch.is_autocast_enabled(value.device.type)
    dtype = torch.get_autocast_dtype(value.device.type) if is_cast else value.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None
