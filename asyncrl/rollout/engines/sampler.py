"""
From logits to tokens: one uniform per (seed, position), one token by the inverse of the cumulative distribution.

    seed, position ──hash──▶ u ──▶ first token whose cumulative probability exceeds u

No random generator has a state here, so what a request draws depends on nothing but its own seed and its own
probabilities, whatever else is in the batch, and a completion begun on one node draws the same on another.

Shapes: n rows decoded together, V tokens in the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
"""The constants of splitmix64, as signed 64-bit integers: torch wraps signed products as C wraps unsigned ones."""


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """
    The draws of B completions.

    Args:
        seeds: Any integers; their low 64 bits count.
        count: Positions 0 .. count - 1.

    Returns:
        [B, count] float32 in [0, 1), multiples of 2^-24 so that every value is exact.

    Source:
        Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (the mixing function).
    """
    streams = _mix(torch.tensor([_signed(seed) for seed in seeds]) + _GOLDEN)
    bits = _mix(streams[:, None] + torch.arange(1, count + 1) * _GOLDEN)
    return _shift_right(bits, 40).to(torch.float32) * 2.0**-24


def draw(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """
    One token a row from the softmax of ``logits / temperature``; the likeliest token where the temperature is 0.

    Args:
        logits: [n, V] float32.
        temperatures: [n] float32.
        uniform: [n] float32 in [0, 1).

    Returns:
        [n] int64 tokens, and [n] float32 log-probabilities under the distribution they were drawn from. A greedy token
        reports the log-softmax of the unscaled logits: its own distribution would make every value 0.
    """
    greedy = temperatures == 0
    logprobs = (logits / temperatures.masked_fill(greedy, 1.0)[:, None]).log_softmax(-1)
    tokens = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), _invert(logprobs, uniform))
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


def draw_plain(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """`draw` where every temperature is 1: the same tokens and log-probabilities with half the operations."""
    logprobs = logits.log_softmax(-1)
    tokens = _invert(logprobs, uniform)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


def draw_filtered(
    logits: Tensor, temperatures: Tensor, uniform: Tensor, top_p: Tensor, top_k: Tensor
) -> tuple[Tensor, Tensor]:
    """
    `draw` from the ``top_k`` likeliest tokens, and of those the fewest that hold ``top_p`` of what is left.

    The log-probabilities are renormalised over the tokens that could have been drawn.

    Args:
        logits: [n, V] float32.
        temperatures: [n] float32.
        uniform: [n] float32 in [0, 1).
        top_p: [n] float32 in (0, 1].
        top_k: [n] int64; 0 keeps all.

    Returns:
        As `draw`. A row with temperature 0 ignores both filters.

    Source:
        Holtzman et al. 2020, arXiv:1904.09751 (top-p); Fan et al. 2018, arXiv:1805.04833 (top-k).
    """
    greedy = temperatures == 0
    scaled = logits / temperatures.masked_fill(greedy, 1.0)[:, None]
    ordered, order = scaled.sort(stable=True, dim=-1, descending=True)
    last_rank = torch.where((top_k == 0) | greedy, logits.shape[-1], top_k)[:, None]
    ordered = ordered.masked_fill(torch.arange(logits.shape[-1], device=logits.device) >= last_rank, -torch.inf)
    probabilities = ordered.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill(mass_before >= top_p.masked_fill(greedy | (top_p >= 1), 2.0)[:, None], -torch.inf)
    logprobs = ordered.log_softmax(-1)
    ranks = _invert(logprobs, uniform).masked_fill(greedy[:, None], 0)
    return order.gather(-1, ranks)[:, 0], logprobs.gather(-1, ranks)[:, 0]


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """[n, 1] index of the first token whose cumulative probability exceeds ``uniform`` of the total."""
    cumulative = logprobs.exp().cumsum(-1)
    # The total is 1 only up to rounding: scaled by it, a draw never falls behind the last token that has any mass.
    indices = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return indices.clamp_(max=logprobs.shape[-1] - 1)  # NaN logits compare false everywhere


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    return state ^ _shift_right(state, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift: torch's own copies the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(seed: int) -> int:
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
