"""
Attention over a packed row of sequences: each sequence attends to itself only.

    indices          a a a a b b c c           keys
    one call each    └──┬──┘ └──┬──┘         a ▚· ·        No mask and no padding: memory grows with the sequences, not
                        │       │   queries  b · ▚ ·       with the square of the row.
                     1 x 4   2 x 2           c · · ▚

On a CUDA device of compute capability 8.0 or more with a 16-bit dtype, and on an NPU, one variable-length kernel takes
all sequences, if it takes their heads. Elsewhere, sequences of the same length go through torch's
scaled_dot_product_attention as a batch; on a CUDA device or an NPU, the reason is logged once.

Ranks that share the row (`SequenceGroup`) each compute it for a part of the heads.

Models find the function by its name, `PACKED`, and receive the `Row` as a keyword argument. Vision towers find
`picture_attention` by `PICTURES`: there the sequences are the patches of pictures, each of which sees all of its own.
"""

import importlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from inspect import signature
from itertools import accumulate, groupby
from math import isclose
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

from asyncrl.algo.logprobs import ready_kernels
from asyncrl.errors import ConfigError
from asyncrl.log import get_logger
from asyncrl.trainer.packing.row import Row

# ── npu attention ─────────────────────────────────────────────────────────────────────────────
# Attention over packed sequences by one kernel of an Ascend NPU.
#
#     queries  a a a a b b c c        ends 4 6 8, on the host        mask: the one triangle that the kernel stretches
#
# Source:
#     torch_npu 2.14, documentation of ``npu_fusion_attention``: layout TND, sparse modes 3 (causal) and 4 (band).

MAX_SEQUENCES = 1000
"""Most sequences of one call; the kernel takes 1 K."""
MAX_HEADS = 256
"""Most query heads."""
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


# ── packed attention ──────────────────────────────────────────────────────────────────────────

log = get_logger()

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries [K, heads, D], keys [K, kv_heads, D] and values [K, kv_heads, E], where E is D in most models."""


class Widths(NamedTuple):
    """Widths of the heads that a kernel takes: at most ``most``, and multiples of ``step``."""

    most: int
    step: int


FLASH, NPU = Widths(256, 8), Widths(768, 1)
"""
Widths that torch's kernel, FlashAttention 2, and an NPU's take. Both want values as wide as keys.

Source:
    torch 2.13, ``mha_varlen_fwd`` and ``mha_varlen_bwd`` of flash_api.cpp; torch_npu 2.14, as above.
"""
PACKED, PICTURES = "asyncrl_packed", "asyncrl_flash_pictures"
"""Names in transformers; "flash" in the second makes a vision tower call it once for all pictures."""
TAKES = frozenset(signature(varlen_attn).parameters)
"""Names of the arguments of the installed torch's kernel."""
WITHOUT_EFFECT = frozenset(
    (
        *("position_ids", "cache_position", "position_embeddings", "past_key_values", "past_key_value", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "is_causal"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "num_items_in_batch", "logits_to_keep"),
    )
)
"""Keywords of attention functions that change no value of causal attention within sequences."""
CAPABILITY = (8, 0)
"""Oldest GPUs that the kernel, FlashAttention 2, is built for: Ampere."""


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
    **keywords: object,
) -> tuple[Tensor, None]:
    """
    Attention function with the signature that transformers calls in each layer.

    Args:
        query: [1, heads, W, D]; ``key`` is [1, kv_heads, W, D] and ``value`` [1, kv_heads, W, E]. If ranks share the
            row, W is this rank's part of it, here and in what is returned.
        attention_mask: Ignored; transformers makes none for this attention.
        scaling: Factor of the scores; None is 1 / √D.
        sliding_window: Keys that a query attends to, itself included; None is all before it.
        row: Sequences of the row, passed through the model as a keyword argument; None is one sequence.

    Returns:
        [1, W, heads, E], and None in place of the attention weights.
    """
    refuse_unknown(module, keywords)
    row = row or Row([np.arange(query.shape[2])], query.device)
    heads = [row.group.to_heads(part) for part in (query, key, value)]
    queries, keys, values = (row.sequences(part[0].transpose(0, 1)) for part in heads)
    if query.is_cuda and (kernel := _kernel((queries, keys, values), row, scaling, sliding_window)):
        out = _varlen_attention((queries, keys, values), row, *kernel)
    elif query.device.type == "npu" and _npu_takes((queries, keys, values)):
        out = npu_attention((queries, keys.to(queries), values.to(queries)), row.lengths, scaling, sliding_window)
    else:
        out = _batched_attention((queries, keys, values), row.lengths, scaling, sliding_window)
    return row.group.to_positions(row.tokens(out)[None]), None


def picture_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor,
    **_: object,
) -> tuple[Tensor, None]:
    """
    Attention function of a vision tower, as `packed_attention` without order: a patch sees all of its picture.

    Args:
        query: [1, heads, P, D] of the patches of all pictures; ``key`` and ``value`` are the same.
        cu_seq_lens_q: [S + 1] ends of pictures, or of windows of them, starting with 0.

    Returns:
        [1, P, heads, D], and None in place of the attention weights.
    """
    ends = cu_seq_lens_q.tolist()
    row = Row(np.split(np.arange(ends[-1]), ends[1:-1]), query.device)
    queries, keys, values = (row.sequences(part[0].transpose(0, 1)) for part in (query, key, value))
    if query.is_cuda and (kernel := _kernel((queries, keys, values), row, scaling, None, is_causal=False)):
        out = _varlen_attention((queries, keys, values), row, *kernel)
    else:
        out = _batched_attention((queries, keys, values), row.lengths, scaling, None, is_causal=False)
    return row.tokens(out)[None], None


def refuse_unknown(module: nn.Module, keywords: Mapping[str, object]) -> None:
    """
    Raise `ConfigError` if a model gives its attention something that the function would not compute with.

    ``dropout`` is 0 outside of training, and a soft-cap, a bias or sinks that are None are none.
    """
    for name, value in keywords.items():
        if name not in WITHOUT_EFFECT and not (value is None or (name == "dropout" and not value)):
            raise ConfigError(
                f"{type(module).__name__} gives its attention {name!r}, which is not computed here; use a model "
                f"without it (docs: Models)"
            )


def use_packed_attention(model: PreTrainedModel) -> None:
    """Register both functions with transformers, and switch every layer of ``model`` to them."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionInterface.register(PICTURES, picture_attention)
    set_attention(model, PACKED, PICTURES)


def set_attention(model: PreTrainedModel, text: str, pictures: str) -> None:
    """Set the attention functions, by their names in transformers, of the text layers and of the vision tower."""
    model.set_attn_implementation({"": text, "text_config": text, "vision_config": pictures})


def kernel_options(
    takes: Collection[str],
    head_dim: int,
    longest: int,
    scaling: float | None,
    window: int | None,
    *,
    is_causal: bool = True,
) -> dict[str, Any] | str:
    """
    Arguments of torch's `varlen_attn` besides the sequences, whose longest has ``longest`` tokens; or what it lacks.

    Args:
        takes: Names of its arguments. In torch 2.10, ``is_causal`` is the only one of these, later ``scale`` and
            ``window_size`` take its place. The kernel lets key heads be shared in all releases; 2.13 wants to be told.
    """
    options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in takes else {}
    if "scale" in takes:
        options["scale"] = scaling
    elif scaling is not None and not isclose(scaling, head_dim**-0.5):
        return f"a scale of the scores other than {head_dim}^-0.5"
    if "window_size" in takes:
        return options | {"window_size": (-1 if window is None else window - 1, 0 if is_causal else -1)}
    if window is not None and window < longest:
        return "a sliding window"
    return options | {"is_causal": is_causal}


def misfit(heads: Heads, widths: Widths) -> str:
    """Name what a kernel does not take of the widths of heads; empty if it takes them."""
    width, key_width, value_width = (part.shape[-1] for part in heads)
    if not width == key_width == value_width:
        return f"values {value_width} wide beside keys {key_width} wide"
    if width > widths.most:
        return f"heads {width} wide; {widths.most} is the most"
    if width % widths.step:
        return f"heads {width} wide; it takes multiples of {widths.step}"
    return ""


def _kernel(
    heads: Heads, row: Row, scaling: float | None, window: int | None, *, is_causal: bool = True
) -> tuple[torch.dtype, dict[str, Any]] | None:
    """Dtype and arguments of the kernel on a CUDA device; None if it cannot take these, which is logged once."""
    queries, _, values = heads
    # Autocast counts, because norms return float32 even under autocast.
    is_cast = torch.is_autocast_enabled(values.device.type)
    dtype = torch.get_autocast_dtype(values.device.type) if is_cast else values.dtype
    capability = _capability(values.device)
    options = kernel_options(TAKES, queries.shape[-1], max(row.lengths), scaling, window, is_causal=is_causal)
    if capability < CAPABILITY:
        _log_slow("a GPU of compute capability {}.{}; 8.0 is the least".format(*capability))
    elif dtype not in (torch.bfloat16, torch.float16):
        _log_slow(f"{values.dtype}; it takes 16-bit numbers")
    elif lacks := misfit(heads, FLASH):
        _log_slow(lacks)
    elif isinstance(options, str):
        _log_slow(options)
    else:
        return dtype, options
    return None


def _npu_takes(heads: Heads) -> bool:
    """True if an NPU's kernel takes these heads; logged once if it does not."""
    num_heads = heads[0].shape[1]
    lacks = misfit(heads, NPU) or (f"{num_heads} heads; {MAX_HEADS} is the most" if num_heads > MAX_HEADS else "")
    if lacks:
        _log_slow(lacks)
    return not lacks


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def _log_slow(lacks: str) -> None:
    log.warning("attention.slow", torch=torch.__version__, kernel_lacks=lacks)


def _varlen_attention(heads: Heads, row: Row, dtype: torch.dtype, options: dict[str, Any]) -> Tensor:
    """[K, heads, E] by one kernel that takes the ends of the sequences."""
    queries, keys, values = (part.to(dtype) for part in heads)
    longest = max(row.lengths)
    out = varlen_attn(queries, keys, values, row.ends, row.ends, longest, longest, **options)
    assert isinstance(out, Tensor)  # without return_aux
    return out


def _batched_attention(
    heads: Heads, lengths: Sequence[int], scaling: float | None, window: int | None, *, is_causal: bool = True
) -> Tensor:
    """[K, heads, E], with one batch for each run of sequences of the same length."""
    runs = [(length, len(list(run))) for length, run in groupby(lengths)]
    cuts = [length * count for length, count in runs]
    queries, keys, values = (torch.split(part, cuts) for part in heads)
    pieces = []
    for (length, count), query, key, value in zip(runs, queries, keys, values, strict=True):
        mask = None
        if window and window < length:  # True where a query attends to a key: itself and the ``window - 1`` before it
            mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)
        with ready_kernels(query.device):
            out = F.scaled_dot_product_attention(
                _to_batch(query, count),
                _to_batch(key, count),
                _to_batch(value, count),
                mask,
                is_causal=is_causal and mask is None,
                scale=scaling,
                enable_gqa=True,
            )
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)


def _to_batch(part: Tensor, count: int) -> Tensor:
    """Reshape [count · length, heads, D] to [count, heads, length, D]."""
    return part.view(count, -1, *part.shape[1:]).transpose(1, 2)
