"""Kernel state that vLLM's layerwise reload does not update; `test_workers` reloads real models."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("vllm")

from vllm.config import VllmConfig
from vllm.model_executor.model_loader.reload import layerwise

from asyncrl.errors import TransferError
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


def test_weights_that_the_model_does_not_take_are_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Linear):
        def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
            named = dict(weights)
            for name, tensor in named.items():
                self.get_parameter(name).copy_(tensor)
            return set(named)

    monkeypatch.setattr(layerwise, "initialize_layerwise_reload", lambda _: None)
    new = reload.Reload(Model(2, 2), VllmConfig())
    new.add({"weight": torch.zeros(2, 2)})

    with pytest.raises(TransferError, match=r"the model does not take the weights: AttributeError: .*`embed`"):
        new.add({"embed": torch.zeros(2, 2)})


def test_enabling_amx_is_harmless_on_any_cpu() -> None:
    reload.enable_amx()
    reload.enable_amx()
