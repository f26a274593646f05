"""
Matrix products of 16-bit tensors that are summed and returned in float32.

    CUDA          one kernel: 16-bit factors, float32 sums and result, or sums that are added to it
    elsewhere     some columns of the right factor at a time, as float32

The product of two bfloat16 numbers is exact in float32, so only the order of a sum makes a difference. Logits of the
trainer and of the built-in engine come from here: rounded to bfloat16, a logit of 20 would be wrong by up to 0.06.
"""

from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor

from asyncrl.log import get_logger

log = get_logger()

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
    for columns in _columns(right):
        result[:, columns] = left @ right[:, columns].float()
    return result


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the `product` of [n, k] and [k, m] to a contiguous [n, m] total of its dtype, without a tensor for it."""
    if left.dtype not in HALVES:
        total.addmm_(left, right)
    elif left.is_cuda and _adds(left.device, left.dtype):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    elif left.is_cuda:
        total += torch.mm(left, right, out_dtype=torch.float32)
    else:
        left = left.float()
        for columns in _columns(right):
            total[:, columns].addmm_(left, right[:, columns].float())


def _columns(right: Tensor) -> Iterator[slice]:
    """Slices of the columns of a factor that are in memory as float32 together."""
    width = max(1, CHUNK // max(1, len(right)))
    return (slice(start, start + width) for start in range(0, right.shape[1], width))


@cache
def _adds(device: torch.device, dtype: torch.dtype) -> bool:
    """True if the installed torch adds a product of 16-bit factors to a float32 total: it is tried, once."""
    left, right = (torch.linspace(-2, 2, 256, device=device).view(16, 16).to(dtype) for _ in range(2))
    total = torch.full((16, 16), 0.123, device=device)
    expected = total + left.float() @ right.float()
    try:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        if torch.allclose(total, expected, rtol=1e-4, atol=1e-4):
            return True
        reason = "gives other values"
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
    log.warning("products.slower", device=str(device), torch=torch.__version__, reason=reason)
    return False
