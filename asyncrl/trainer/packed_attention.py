"""
Attention of sequences that lie end to end in one row: each sees itself, and nobody else.

    row              a a a a b b c c           keys
    one call each    └──┬──┘ └──┬──┘         a ▚· ·        No mask and no padding: memory grows with the row, not with
                        │       │   queries  b · ▚ ·       its square.
                     1 x 4   2 x 2           c · · ▚

On a CUDA device with a half-width dtype one kernel takes the row as it is. Elsewhere neighbours of one length go
through torch's attention as a batch; that micro-batches are sorted by length makes the batches large.

Models are given it by name, `PACKED`, and get the lengths as transformers passes them to its own kernels: as the
keyword arguments `boundaries` makes.
"""

from collections.abc import Sequence
from inspect import signature
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

Rows = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, [heads, W, D] each; the last two may have fewer heads."""

PACKED = "asyncrl_packed"
HAS_KERNEL = "enable_gqa" in signature(varlen_attn).parameters
"""The first releases of torch that had it knew neither windows nor key heads that are shared."""


def boundaries(sequence_lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Keyword arguments for a model whose row holds sequences of these lengths."""
    ends = torch.tensor([0, *sequence_lengths]).cumsum(0, dtype=torch.int32).to(device)
    longest = max(sequence_lengths)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
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
        cu_seq_lens_q: [S + 1] where sequences begin and end; None is one sequence.
        max_length_q: The longest.

    Returns:
        [1, W, heads, D], and no scores.
    """
    ends = torch.tensor([0, query.shape[2]], device=query.device) if cu_seq_lens_q is None else cu_seq_lens_q
    rows = query[0], key[0], value[0]
    if query.is_cuda and HAS_KERNEL and (dtype := _half(value)):
        longest = max_length_q or query.shape[2]
        return _in_one(rows, ends.int(), longest, scaling, sliding_window, dtype)[None], None
    return _by_length(rows, ends.diff().tolist(), scaling, sliding_window)[None], None


def pack(model: PreTrainedModel) -> None:
    """Make every layer of ``model`` attend this way. Registers `PACKED` with transformers."""
    AttentionInterface.register(PACKED, packed_attention)
    model.set_attn_implementation(PACKED)


def _in_one(  # noqa: PLR0917  called once
    rows: Rows, ends: Tensor, longest: int, scaling: float | None, window: int | None, dtype: torch.dtype
) -> Tensor:
    """[W, heads, D] by a kernel that knows where sequences end."""
    queries, keys, values = (row.transpose(0, 1).to(dtype) for row in rows)
    out = varlen_attn(
        queries,
        keys,
        values,
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(out, Tensor)  # without return_aux
    return out


def _by_length(rows: Rows, lengths: Sequence[int], scaling: float | None, window: int | None) -> Tensor:
    """[W, heads, D], runs of sequences of one length as one batch."""
    runs = [(length, len(list(run))) for length, run in groupby(lengths)]
    cuts = [length * count for length, count in runs]
    pieces = []
    for (length, count), *parts in zip(runs, *(_split(row, cuts) for row in rows), strict=True):
        queries, keys, values = (part.unflatten(1, (count, length)).transpose(0, 1) for part in parts)
        mask = _band(length, window, queries.device) if window and window < length else None
        out = F.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)


def _split(row: Tensor, cuts: list[int]) -> tuple[Tensor, ...]:
    return torch.split(row, cuts, 1)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length] bool, True where a query sees a key: itself and ``window - 1`` before it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)


def _half(value: Tensor) -> torch.dtype | None:
    """What products are in, if that is half-width: under autocast, norms hand out float32 all the same."""
    is_cast = torch.is_autocast_enabled(value.device.type)
    dtype = torch.get_autocast_dtype(value.device.type) if is_cast else value.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None
