"""
Elementwise parts of a decoder layer: in torch's operations, or as two kernels of Triton, which torch's builds for GPUs
bring along.

    q, k, v ─ rms(q, k) · norm ─ rope ─▶ q, k in place; k, v in the cache      six operations, or one kernel
    gate, up ─▶ silu(gate) · up                                                two operations, or one kernel

A decode step launches hundreds of kernels that take microseconds each, so that their number is its time. Triton is
taken where it is installed and gives what torch gives: it is tried when a model is loaded.

Shapes: N tokens, Q and K query and key-value heads, D head_dim, I intermediate size.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor

from asyncrl.log import get_logger

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = None

log = get_logger()

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of tokens, each [N, 1, D]; the first half of the sines is negated, so that `roll` rotates."""
Launch = Callable[..., object]
"""Launches a kernel: (kernel, grid, arguments by name)."""
BLOCK = 1024
"""Elements of a row that one program of the gate computes."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.01}
"""Rounding of the dtype, relative to the largest value: torch rounds between its operations, and Triton at the end."""


class LayerKernels:
    """
    Torch's operations.

    Args:
        kv_heads: K, of ``[N, Q + 2K, D]`` heads: queries, keys, values.
        eps: Of the norms of heads.
    """

    def __init__(self, kv_heads: int, eps: float) -> None:
        self._kv_heads, self._eps = kv_heads, eps

    def place(self, heads: Tensor, norms: Tensor, rotation: Rotation, cache: Tensor, cells: Tensor) -> None:
        """
        Normalise and rotate queries and keys in place, and store keys and values.

        Args:
            heads: [N, Q + 2K, D].
            norms: [Q + K, D] weights of the norms.
            cache: [cells, 2 * K * D], keys first.
            cells: [N] distinct.
        """
        cos, sin = rotation
        rotated = heads[:, : len(norms)]
        normed = F.rms_norm(rotated, rotated.shape[-1:], eps=self._eps).mul_(norms)
        torch.addcmul(normed * cos, normed.roll(heads.shape[-1] // 2, -1), sin, out=rotated)
        cache.index_copy_(0, cells, heads[:, -2 * self._kv_heads :].flatten(1))

    def gate(self, gate_up: Tensor) -> Tensor:
        """[N, I] product of the second half of [N, 2I] with the sigmoid linear unit of the first."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class TritonKernels(LayerKernels):
    """One kernel for each part."""

    def __init__(self, kv_heads: int, eps: float, launch: Launch | None = None) -> None:
        super().__init__(kv_heads, eps)
        self._launch = launch or _launched

    def place(self, heads: Tensor, norms: Tensor, rotation: Rotation, cache: Tensor, cells: Tensor) -> None:
        cos, sin = (part.contiguous() for part in rotation)
        num_heads, head_dim = heads.shape[1:]
        arguments: dict[str, Any] = {"heads": heads, "norms": norms, "cos": cos, "sin": sin}
        arguments |= {"cache": cache, "cells": cells}
        arguments |= {"row": heads.stride(0), "cell": cache.stride(0), "eps": self._eps}
        sizes = {"rotated": len(norms), "queries": num_heads - 2 * self._kv_heads, "half": head_dim // 2}
        self._launch("place", (len(heads), num_heads), arguments | sizes)

    def gate(self, gate_up: Tensor) -> Tensor:
        size = gate_up.shape[-1] // 2
        out = gate_up.new_empty(len(gate_up), size)
        arguments = {"gate_up": gate_up, "out": out, "size": size, "block": BLOCK}
        self._launch("gate", (len(gate_up), -(-size // BLOCK)), arguments)
        return out


def layer_kernels(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int], eps: float, launch: Launch | None = None
) -> LayerKernels:
    """
    The faster of both that work on a device: Triton is tried, and what it gives compared.

    Args:
        heads: Q, K, D.
        launch: Launches kernels in place of Triton.
    """
    plain = LayerKernels(heads[1], eps)
    if not (launch or device.type == "cuda"):
        return plain
    fast = TritonKernels(heads[1], eps, launch)
    try:
        if triton is None and launch is None:
            reason = "Triton is not installed"
        elif _agree(plain, fast, device, dtype, heads):
            return fast
        else:
            reason = "Triton gives other values"
    except Exception as error:  # noqa: BLE001  a compiler may fail in any way, and torch has the operations
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    log.warning("engine.slower", device=str(device), torch=torch.__version__, reason=reason)
    return plain


@torch.inference_mode()
def _agree(
    plain: LayerKernels, fast: LayerKernels, device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int]
) -> bool:
    """True if both give the same for a few tokens."""
    queries, keys, size = heads
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    qkv, norms, gate_up = random(3, queries + 2 * keys, size), random(queries + keys, size), random(3, 2 * BLOCK + 6)
    rotation, cells = (random(3, 1, size), random(3, 1, size)), torch.tensor([4, 0, 3], device=device)
    found = []
    for kernels in (plain, fast):
        own, cache = qkv.clone(), torch.zeros(5, 2 * keys * size, device=device, dtype=dtype)
        kernels.place(own, norms, rotation, cache, cells)
        found.append([own, cache, kernels.gate(gate_up)])
    return all(
        bool((one.float() - other.float()).abs().max() <= TOLERANCE[dtype] * one.float().abs().max())
        for one, other in zip(*found, strict=True)
    )


def _launched(kernel: str, grid: tuple[int, int], arguments: dict[str, Any]) -> object:
    return _KERNELS[kernel][grid](**arguments)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _place(  # type: ignore[no-untyped-def]  # noqa: PLR0917  Triton's arguments have no types
        heads,
        norms,
        cos,
        sin,
        cache,
        cells,
        row,
        cell,
        eps,
        rotated: tl.constexpr,
        queries: tl.constexpr,
        half: tl.constexpr,
    ):
        """One head of one token."""
        token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        columns = tl.arange(0, half)
        source = heads + token * row + head * 2 * half + columns
        first = tl.load(source).to(tl.float32)
        second = tl.load(source + half).to(tl.float32)
        if head < rotated:
            squares = tl.sum(first * first) + tl.sum(second * second)
            scale = 1 / tl.sqrt(squares / (2 * half) + eps)
            norm, angle = norms + head * 2 * half + columns, token * 2 * half + columns
            normed = first * scale * tl.load(norm).to(tl.float32)
            rolled = second * scale * tl.load(norm + half).to(tl.float32)
            first = normed * tl.load(cos + angle).to(tl.float32) + rolled * tl.load(sin + angle).to(tl.float32)
            second = rolled * tl.load(cos + angle + half).to(tl.float32)
            second += normed * tl.load(sin + angle + half).to(tl.float32)
            tl.store(source, first.to(heads.dtype.element_ty))
            tl.store(source + half, second.to(heads.dtype.element_ty))
        if head >= queries:
            target = cache + tl.load(cells + token) * cell + (head - queries) * 2 * half + columns
            tl.store(target, first.to(cache.dtype.element_ty))
            tl.store(target + half, second.to(cache.dtype.element_ty))

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate(gate_up, out, size: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """A block of one row."""
        token, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
        source = gate_up + token * 2 * size + columns
        gate = tl.load(source, mask=columns < size).to(tl.float32)
        up = tl.load(source + size, mask=columns < size).to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
        tl.store(out + token * size + columns, (silu * up).to(out.dtype.element_ty), mask=columns < size)

    _KERNELS = {"place": _place, "gate": _gate}
