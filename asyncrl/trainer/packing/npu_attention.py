"""
Attention over packed sequences by one kernel of an Ascend NPU.

    queries  a a a a b b c c        ends 4 6 8, on the host        mask: the one triangle that the kernel stretches

Source:
    torch_npu 2.14, documentation of ``npu_fusion_attention``: layout TND, sparse modes 3 (causal) and 4 (band).
"""

import importlib
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

MAX_SEQUENCES = 1000
"""Most sequences of one call; the kernel takes 1 K."""
MASK_SIZE = 2048
"""Rows and columns of the mask, 4 MiB that stay on the device."""
CAUSAL, BAND = 3, 4


def npu_attention(
    heads: tuple[Tensor, Tensor, Tensor], lengths: Sequence[int], scaling: float | None, window: int | None
) -> Tensor:
    """
    [K, heads, D] attention of sequences that are end to end.

    Args:
        heads: Queries [K, heads, D], keys and values [K, kv_heads, D], of the same dtype.
        lengths: [S] tokens of each sequence, K in total.
        scaling: Factor of the scores; None is 1 / √D.
        window: Keys that a query attends to, itself included; None is all before it.
    """
    queries, keys, values = heads
    kernel: Any = importlib.import_module("torch_npu").npu_fusion_attention
    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    band = {} if window is None else {"pre_tockens": window - 1, "next_tockens": 0}
    pieces, begin = [], 0
    for first in range(0, len(lengths), MAX_SEQUENCES):
        ends = list(accumulate(lengths[first : first + MAX_SEQUENCES]))
        rows = slice(begin, begin + ends[-1])
        out = kernel(
            queries[rows],
            keys[rows],
            values[rows],
            queries.shape[1],
            "TND",
            atten_mask=_mask(queries.device),
            scale=scale,
            actual_seq_qlen=ends,
            actual_seq_kvlen=ends,
            sparse_mode=CAUSAL if window is None else BAND,
            **band,
        )
        pieces.append(out[0])
        begin += ends[-1]
    return torch.cat(pieces)


@cache
def _mask(device: torch.device) -> Tensor:
    """[2048, 2048] bool, True where a key is hidden; the kernel applies it to sequences of any length."""
    return torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.bool, device=device).triu(1)
