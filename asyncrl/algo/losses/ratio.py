"""How much likelier a token has become: logarithm of the ratio, bounded so that it can be exponentiated."""

from torch import Tensor

from asyncrl.algo.losses.tokens import Tokens

MAX_LOG_RATIO = 20.0
"""Beyond e^20 a ratio says only that something is broken, and must not outweigh everything else."""
FLOAT32_LOG_RATIO = 80.0
"""Bound of losses that are defined without one: e^80 times an advantage is still finite in float32."""


def log_ratio(tokens: Tokens, bound: float = MAX_LOG_RATIO) -> Tensor:
    """[N] ``logprobs - old_logprobs`` within ``±bound``; flat, without a gradient, beyond."""
    return (tokens.logprobs - tokens.old_logprobs).clamp(-bound, bound)
