"""
New weights into a model that vLLM has laid out for its kernels.

vLLM renames, fuses and shards what it loads (q, k and v in one matrix, gate and up, experts, one part for each tensor
parallel rank) and packs the result. Its layerwise reload does all that again into the same memory, layer by layer. On a
CPU three things are left over from the old weights (vLLM 0.32), and are mended here.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader.reload import layerwise

from asyncrl.errors import TransferError

# It warns of each layer without weights of its own, a tied head's among them, at every publish. `Reload` looks itself.
logging.getLogger(layerwise.__name__).setLevel(logging.ERROR)


class Reload:
    """
    One version on its way into the model: `add` tensors until all are there, then `finish`. Nothing may decode between.

    Args:
        model: vLLM's.
        config: The engine's.
    """

    def __init__(self, model: nn.Module, config: VllmConfig) -> None:
        self._model = model
        self._config = config
        self._loaded: set[str] = set()
        with torch.no_grad():
            _unpack_experts(model)
            layerwise.initialize_layerwise_reload(model)

    def add(self, tensors: Mapping[str, Tensor], *, are_borrowed: bool = False) -> None:
        """
        Load some.

        Args:
            tensors: By checkpoint name.
            are_borrowed: They are written over before `finish`. vLLM may read them as late as that.
        """
        with set_current_vllm_config(self._config), torch.no_grad():
            loader: Any = self._model  # torch's Module knows nothing of checkpoints
            ours = ((name, tensor.clone() if are_borrowed else tensor) for name, tensor in tensors.items())
            self._loaded.update(loader.load_weights(ours))
        if are_borrowed and torch.accelerator.is_available():
            torch.accelerator.synchronize()  # The copies are made when the device gets to it.

    def finish(self) -> None:
        """
        Pack what was added.

        Raises:
            TransferError: A parameter of the model got nothing; names it. The model cannot be used then.
        """
        with set_current_vllm_config(self._config), torch.no_grad():
            layerwise.finalize_layerwise_reload(self._model, self._config.model_config)
            _repack_tied_heads(self._model)
        if missing := sorted({name for name, _ in self._model.named_parameters()} - self._loaded):
            raise TransferError(f"vLLM's {missing[0]} and {len(missing) - 1} more parameters got no new weights")


def ready_processor() -> None:
    """Ask the kernel for AMX in this process: without it vLLM's bfloat16 attention on such a CPU ends the process."""
    cpu: Any = torch.cpu
    if getattr(cpu, "_is_amx_tile_supported", bool)():
        cpu._init_amx()


def _unpack_experts(model: nn.Module) -> None:
    """A mixture's experts are packed for the CPU only while their layer has no kernel yet: make it forget its own."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and next(module.parameters()).device.type == "cpu":
            method.moe_kernel = None


def _repack_tied_heads(model: nn.Module) -> None:
    """A head tied to the embedding has no weights of its own to load, but a packed copy of the old ones."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if hasattr(module, "cpu_linear") and type(method).__name__ == "UnquantizedEmbeddingMethod":
            method.process_weights_after_loading(module)
