"""
Sampling of tokens from logits by inverse transform, with one uniform per (seed, position).

    seed, position ──hash──▶ u ──▶ first token whose cumulative probability exceeds u

There is no generator state: a request's tokens depend on its own seed and probabilities only, not on the batch, and a
completion resumed on another node continues with the same draws.

Shapes: n rows decoded together, V tokens in the vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
"""Constants of splitmix64 as signed 64-bit integers: torch wraps signed products as C wraps unsigned ones."""


class Ranking(NamedTuple):
    """Tokens of n rows in order of probability, the likeliest first."""

    order: Tensor
    """Token ids, [n, V] int64."""
    logprobs: Tensor
    """Log-probabilities of these tokens, [n, V]; minus infinity for tokens that were filtered out."""

    def masks(self, rows: Tensor) -> tuple[list[int], list[int]]:
        """Sampling masks of [m] rows: number of tokens left in each, and these tokens, row after row, ascending."""
        is_left = torch.zeros_like(self.order[rows], dtype=torch.bool)
        is_left.scatter_(1, self.order[rows], self.logprobs[rows] > -torch.inf)
        return is_left.sum(1).tolist(), is_left.nonzero()[:, 1].tolist()


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """
    Uniforms [B, count] for B completions and positions 0 .. count - 1; of a seed the low 64 bits count.

    They are float32 in [0, 1), and multiples of 2^-24 so that every value is exact.
    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (the mixing function).
    """
    streams = _mix(torch.tensor([_signed(seed) for seed in seeds]) + _GOLDEN)
    bits = _mix(streams[:, None] + torch.arange(1, count + 1) * _GOLDEN)
    return _shift_right(bits, 40).to(torch.float32) * 2.0**-24


def draw(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """
    Sample one token per row from the softmax of ``logits / temperature``; temperature 0 takes the likeliest token.

    Logits [n, V], temperatures [n] and uniforms [n] in [0, 1) are float32.

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
) -> tuple[Tensor, Tensor, Ranking]:
    """
    `draw` from the ``top_k`` likeliest tokens, reduced to the fewest that hold ``top_p`` of their probability.

    ``top_p`` [n] is in (0, 1]; ``top_k`` [n] int64 keeps all if 0. Temperature 0 ignores both. The log-probabilities
    are renormalised over the remaining tokens, which the returned `Ranking` tells.

    Source: Holtzman et al. 2020, arXiv:1904.09751 (top-p); Fan et al. 2018, arXiv:1805.04833 (top-k).
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
    return order.gather(-1, ranks)[:, 0], logprobs.gather(-1, ranks)[:, 0], Ranking(order, logprobs)


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """[n, 1] index of the first token whose cumulative probability exceeds ``uniform`` of the total."""
    cumulative = logprobs.exp().cumsum(-1)
    # The total is 1 only up to rounding. Scaling by it keeps every draw at or before the last token with any mass.
    indices = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return indices.clamp_(max=logprobs.shape[-1] - 1)  # NaN logits compare false everywhere


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    return state ^ _shift_right(state, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift; torch's own shift copies the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(seed: int) -> int:
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
