"""Kernel state that vLLM's layerwise reload does not update; `test_workers` reloads real models."""

from typing import Any

import pytest
from torch import nn

pytest.importorskip("vllm")

from asyncrl.rollout.engines.vllm import reload


class UnquantizedEmbeddingMethod:
    """Named like vLLM's class."""

    def __init__(self) -> None:
        self.packed: list[nn.Module] = []

    def process_weights_after_loading(self, module: nn.Module) -> None:
        self.packed.append(module)


class ExpertMethod:
    moe_kernel: object | None = object()


def layer(**attributes: Any) -> nn.Module:
    module = nn.Linear(2, 2)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_heads_with_a_packed_copy_are_packed_again() -> None:
    method = UnquantizedEmbeddingMethod()
    head, embedding = layer(quant_method=method, cpu_linear=object()), layer(quant_method=method)

    reload._repack_tied_heads(nn.Sequential(embedding, head))

    assert method.packed == [head]


def test_expert_layers_on_a_cpu_lose_their_kernel() -> None:
    method = ExpertMethod()

    reload._unpack_experts(nn.Sequential(layer(quant_method=method), layer()))

    assert method.moe_kernel is None


def test_enabling_amx_is_harmless_on_any_cpu() -> None:
    reload.enable_amx()
    reload.enable_amx()
