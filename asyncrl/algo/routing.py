"""
Routing of tokens to experts, and the gates of experts that another forward pass chose.

    router    s = logits [N, E]     chosen: the K highest     gate_i = exp(s_i) / Σ_j exp(s_j),  j over the chosen ones
    replay    s = logits [N, E]     given:  K of the sampler  gate_i = exp(s_i) / Σ_j exp(s_j),  j over the given ones

Two computations of one router differ by rounding. If two experts are nearly tied, they choose different ones, and the
log-prob of the token jumps. With the sampler's experts it does not, and the gates still have the gradient of the router
in training. For a router that does not renormalise, both sums are over all experts.

Source:
    Ma et al. 2025, arXiv:2510.11370 (rollout routing replay, R3).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.messages.trajectory import RouteShape, Routing

Experts = NDArray[np.integer]
"""Ids of experts, [tokens, layers, K] uint8 or int16."""


def expert_modules(model: nn.Module) -> list[nn.Module]:
    """Modules of fused experts, one for each layer with experts; their parameters are [E, ...]."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "num_experts") and getattr(getattr(module, "down_proj", None), "ndim", 0) == 3
    ]


def route_shape(model: Any) -> RouteShape | None:
    """Shape of a transformers model's routes; None if it has no experts, or no ``num_experts_per_tok``."""
    modules = expert_modules(model)
    top_k = getattr(model.config.get_text_config(), "num_experts_per_tok", None) or 0
    if not modules or not top_k:
        return None
    return RouteShape(len(modules), top_k, min(len(experts.get_parameter("down_proj")) for experts in modules))


def gates(logits: Tensor, experts: Tensor, *, renormalised: bool) -> Tensor:
    """
    [N, K] float32 weights of the outputs of ``experts``.

    Args:
        logits: [N, E] of the router. They carry the gradient.
        experts: [N, K] int64.
        renormalised: The weights of a token sum to 1.
    """
    chosen = logits.float().softmax(-1).gather(1, experts)
    return chosen / chosen.sum(-1, keepdim=True) if renormalised else chosen


def to_routing(experts: Experts) -> Routing:
    """Encode experts as a message has them, little-endian."""
    little = experts.astype(experts.dtype.newbyteorder("<"), copy=False)
    return Routing(memoryview(little.tobytes()), experts.shape[1], experts.shape[2], experts.itemsize)


def from_routing(routing: Routing) -> Experts:
    """Decode experts of a message that has been checked. The array borrows the message's memory."""
    kind = "<u1" if routing.width == 1 else "<i2"
    return np.frombuffer(routing.experts, kind).reshape(-1, routing.layers, routing.top_k)
