"""
Norms of a model in torch's own kernel.

    x ─ float32 ─ square ─ mean ─ rsqrt ─ · x ─ dtype ─ · weight      eight kernels, which keep as many tensors
    x ─ rms_norm ─▶                                                   one, which rounds once

Models of transformers write their norms out. On a GPU these take as long as the matrix products of small models.
"""

from copy import copy
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn


def fuse_norms(model: nn.Module) -> int:
    """Let the norms of a model that are root-mean-square norms be one operation; returns how many are."""
    fits: dict[type[nn.Module], bool] = {}
    num_fused = 0
    for norm in model.modules():
        kind = type(norm)
        if kind not in fits:
            fits[kind] = _is_root_mean_square(norm)
        if fits[kind]:
            norm.forward = MethodType(_fused, norm)
            num_fused += 1
    return num_fused


def _fused(norm: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)


def _is_root_mean_square(norm: nn.Module) -> bool:
    """True if a module gives what torch's operation gives: its class says little, as some add 1 to their weights."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if not (isinstance(weight, Tensor) and weight.dim() == 1 and isinstance(eps, float)):
        return False
    generator = torch.Generator().manual_seed(0)
    probe: Any = copy(norm)
    probe._parameters = {"weight": nn.Parameter(torch.rand(len(weight), generator=generator) + 0.5)}
    hidden = torch.randn(3, len(weight), generator=generator) * torch.tensor([[1e-3], [1.0], [30.0]])
    with torch.no_grad():
        return torch.allclose(probe(hidden), _fused(probe, hidden), rtol=1e-5, atol=1e-6)
