"""
Matrix products of 16-bit tensors that are summed and returned in float32.

    CUDA          one kernel: 16-bit factors, float32 sums and result
    elsewhere     some columns of the right factor at a time, as float32

The product of two bfloat16 numbers is exact in float32, so only the order of a sum makes a difference. Logits of the
trainer and of the built-in engine come from here: rounded to bfloat16, a logit of 20 would be wrong by up to 0.06.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
CHUNK = 1 << 25
"""Elements of the right factor in memory as float32 at a time: 128 MiB."""


def head_logits(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """
    Logits [..., V] of a linear head, in float32 or the dtype of the inputs if that is wider.

    Args:
        states: [..., H], of the dtype of the head.
        weight: [V, H].
        bias: [V].
    """
    if states.dtype not in HALVES:
        return F.linear(states, weight, bias)
    logits = product(states.flatten(0, -2), weight.T)
    if bias is not None:
        logits += bias
    return logits.view(*states.shape[:-1], len(weight))


def product(left: Tensor, right: Tensor) -> Tensor:
    """[n, m] product of [n, k] and [k, m], which have one dtype; in float32 if that is narrower."""
    if left.dtype not in HALVES:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    result = left.new_empty(len(left), right.shape[1], dtype=torch.float32)
    left = left.float()
    for columns in range(0, right.shape[1], width := max(1, CHUNK // max(1, len(right)))):
        result[:, columns : columns + width] = left @ right[:, columns : columns + width].float()
    return result
