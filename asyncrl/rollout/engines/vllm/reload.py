"""
Loading of new weights into a model that vLLM has laid out for its kernels.

vLLM renames, fuses and shards loaded weights (q, k and v in one matrix, gate and up, experts, one part per tensor
parallel rank) and packs the result. Its layerwise reload repeats all of this into the same memory, layer by layer. On a
CPU it leaves packed experts and tied heads as they were (vLLM 0.32); this module updates them.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader.reload import layerwise

from asyncrl.errors import TransferError
from asyncrl.plug_in import describe

# It warns at every publish of each layer without weights of its own, such as a tied head. `Reload` checks by itself.
logging.getLogger(layerwise.__name__).setLevel(logging.ERROR)


class Reload:
    """Loads one version into vLLM's model: `add` all tensors, then `finish`. Nothing may decode in between."""

    def __init__(self, model: nn.Module, config: VllmConfig, device: torch.device) -> None:
        self._model = model
        self._config = config
        self._device = device
        self._loaded: set[str] = set()
        self._names_loaded = True
        """The model says which parameters it has loaded; vLLM lets it say nothing."""
        with self._loading():
            _unpack_experts(model)
            layerwise.initialize_layerwise_reload(model)

    def add(self, tensors: Mapping[str, Tensor], *, are_borrowed: bool = False) -> None:
        """
        Load tensors by checkpoint name.

        Borrowed ones are copied: the caller overwrites them before `finish`, and vLLM may read them as late as that.

        Raises:
            TransferError: The model does not take them; it cannot be used then.
        """
        with self._loading():
            loader: Any = self._model  # torch's Module has no load_weights
            owned = ((name, tensor.clone() if are_borrowed else tensor) for name, tensor in tensors.items())
            try:
                loaded: set[str] | None = loader.load_weights(owned)
            except Exception as error:  # a model's loader may raise anything
                raise TransferError(f"the model does not take the weights: {describe(error, __file__)}") from error
            self._loaded |= loaded or set()
            self._names_loaded &= loaded is not None
        if are_borrowed:
            self._synchronize()

    def finish(self) -> None:
        """
        Pack the added tensors, and return when the device has them all.

        Raises `TransferError` if a parameter got none: the model cannot be used then. In a quantized model, parameters
        such as scales are computed and not loaded, so there this is not checked, as in vLLM's own reload.
        """
        with self._loading():
            layerwise.finalize_layerwise_reload(self._model, self._config.model_config)
            _repack_tied_heads(self._model)
        self._synchronize()
        if not self._names_loaded or self._config.model_config.quantization is not None:
            return
        if missing := sorted({name for name, _ in self._model.named_parameters()} - self._loaded):
            raise TransferError(f"vLLM's {missing[0]} and {len(missing) - 1} more parameters got no new weights")

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """The conditions under which vLLM loads weights."""
        with ExitStack() as conditions:
            conditions.enter_context(set_current_vllm_config(self._config))
            conditions.enter_context(torch.no_grad())
            if self._device.type != "cpu":  # The current device is per thread, and a bucket arrives in another one.
                conditions.enter_context(torch.get_device_module(self._device).device(self._device))
            if self._device.type == "npu":  # NPUWorker makes it the default of new tensors; vLLM's workers do not.
                conditions.enter_context(self._device)
            yield

    def _synchronize(self) -> None:
        """Wait for the device's copies: the tensors that they read are overwritten by the next transfer."""
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize(self._device)


def enable_amx() -> None:
    """Enable AMX for this process: without it vLLM's bfloat16 attention ends the process on a CPU with AMX."""
    cpu: Any = torch.cpu
    if getattr(cpu, "_is_amx_tile_supported", bool)():
        cpu._init_amx()


def _unpack_experts(model: nn.Module) -> None:
    """Drop the kernels of expert layers on a CPU: vLLM packs experts only while their layer has no kernel."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and next(module.parameters()).device.type == "cpu":
            method.moe_kernel = None


def _repack_tied_heads(model: nn.Module) -> None:
    """Pack heads tied to the embedding again: they load no weights, but keep a packed copy of the old ones."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if hasattr(module, "cpu_linear") and type(method).__name__ == "UnquantizedEmbeddingMethod":
            method.process_weights_after_loading(module)
