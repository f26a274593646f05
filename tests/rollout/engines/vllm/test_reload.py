"""What vLLM's layerwise reload does not do by itself; `test_workers` reloads real models."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("vllm")

from vllm.config import VllmConfig
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
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


CPU = torch.device("cpu")
FP8_MAX = 448.0


class Loading(nn.Linear):
    """Loads as vLLM's models do. ``reports`` is False for those that do not say what they have loaded."""

    def __init__(self, *, reports: bool = True) -> None:
        super().__init__(2, 2, bias=False)
        self.requires_grad_(False)
        self._reports = reports
        layerwise.record_metadata_for_reloading(self)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        named = dict(weights)
        for name, tensor in named.items():
            parameter: Any = self.get_parameter(name)
            parameter.weight_loader(parameter, tensor)
        return set(named) if self._reports else None


class Fp8(QuantizeMethodBase):  # type: ignore[misc]
    """Computes a scale from each weight it is given, as vLLM's online quantization does."""

    def create_weights(self, *_: Any, **__: Any) -> None: ...

    def apply(self, *_: Any, **__: Any) -> Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        weight: Any = layer.weight
        scale = weight.abs().max() / FP8_MAX
        layer.weight = nn.Parameter((weight / scale).to(torch.float8_e4m3fn), requires_grad=False)
        layer.weight_scale = nn.Parameter(scale, requires_grad=False)


def config(quantization: str | None = None) -> VllmConfig:
    made: Any = VllmConfig()
    made.model_config = SimpleNamespace(quantization=quantization, dtype=torch.float32)
    return made


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


def test_weights_that_the_model_does_not_take_are_an_error_with_its_cause() -> None:
    new = reload.Reload(Loading(), config(), CPU)
    new.add({"weight": torch.zeros(2, 2)})

    with pytest.raises(TransferError, match=r"the model does not take the weights: AttributeError: .*`embed`"):
        new.add({"embed": torch.zeros(2, 2)})


def test_a_parameter_without_new_weights_is_an_error() -> None:
    new = reload.Reload(Loading(), config(), CPU)
    new.add({})

    with pytest.raises(TransferError, match="vLLM's weight and 0 more parameters got no new weights"):
        new.finish()


def test_a_model_that_does_not_say_what_it_has_loaded_is_believed() -> None:
    model = Loading(reports=False)
    new = reload.Reload(model, config(), CPU)
    new.add({"weight": torch.full((2, 2), 3.0)})
    new.finish()

    assert model.weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_the_scales_of_a_quantized_model_are_computed_and_not_loaded() -> None:
    model: Any = Loading()
    model.quant_method = Fp8()
    model.quant_method.process_weights_after_loading(model)
    storage = model.weight.data_ptr()

    for version in (1.0, 2.0):
        new = reload.Reload(model, config("fp8"), CPU)
        new.add({"weight": torch.full((2, 2), FP8_MAX * version)})
        new.finish()

        assert model.weight_scale.item() == version
        assert (model.weight.float() * model.weight_scale).unique().tolist() == [FP8_MAX * version]
    assert model.weight.data_ptr() == storage, "captured graphs read the old place"


class Accelerator:
    """A device and its module in torch: records what happens to it."""

    def __init__(self, kind: str) -> None:
        self.type = kind
        self.events: list[str] = []

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        assert device is self
        self.events.append("current")
        yield
        self.events.append("former")

    def synchronize(self, device: object) -> None:
        assert device is self
        self.events.append("wait")

    def __enter__(self) -> None:
        self.events.append("default")

    def __exit__(self, *_: object) -> None:
        self.events.append("not default")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """What a device sees of a version that arrives in one borrowed bucket."""
    device: Any = Accelerator(request.param)
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    new = reload.Reload(Loading(), config(), device)
    new.add({"weight": torch.zeros(2, 2)}, are_borrowed=True)
    new.finish()
    return device.events


@pytest.mark.parametrize("steps", ["cuda"], indirect=True)
def test_borrowed_tensors_and_the_whole_version_are_on_the_device_when_a_call_returns(steps: list[str]) -> None:
    begin, add, finish = ["current", "former"], ["current", "former", "wait"], ["current", "former", "wait"]

    assert steps == begin + add + finish


@pytest.mark.parametrize("steps", ["npu"], indirect=True)
def test_on_an_npu_new_tensors_are_made_there_as_npu_worker_does(steps: list[str]) -> None:
    phase = ["current", "default", "not default", "former"]

    assert [step for step in steps if step != "wait"] == phase * 3


def test_enabling_amx_is_harmless_on_any_cpu() -> None:
    reload.enable_amx()
    reload.enable_amx()
