"""
Checkpoint names and shapes of a model's tensors: the common format of the trainer and all engines.

    in the model      experts.gate_up_proj [E, 2I, H]          one tensor, so that one kernel computes all experts
                           │  sliced and transposed, never copied
    in a checkpoint   experts.0.gate_proj.weight [I, H] ··· experts.E-1.up_proj.weight

A dense model has the same names in both. Tied tensors occur once. Names depend only on the model's architecture: a
model without weights (torch's ``meta`` device) has the same names as a loaded one.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from asyncrl.weights.contents.layout import TensorSpec


def checkpoint_specs(model: nn.Module, dtype: str) -> list[TensorSpec]:
    """Specs of the `checkpoint_tensors`, all sent as ``dtype`` (torch's name of it)."""
    return [TensorSpec(name=name, shape=tuple(part.shape), dtype=dtype) for name, part in checkpoint_tensors(model)]


def checkpoint_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """
    A model's parameters as a checkpoint names and shapes them, in the order of `checkpoint_specs`.

    The tensors are views of the parameters, so writing one updates the model, as long as parameters are not moved. A
    few model families store rows in another order than in the checkpoint and yield copies; `are_views` detects them.
    """
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if isinstance(model, PreTrainedModel):
        unloaded = copy(model)
        unloaded._weight_conversions = None  # drop those of the loaded files, whose format may differ
        with _NoContiguousCopies():
            tensors = revert_weight_conversion(unloaded, tensors)
    yield from tensors.items()


def are_views(model: nn.Module) -> bool:
    """True if writing the `checkpoint_tensors` updates every parameter of ``model``, which must have weights."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    tensors = [tensor for _, tensor in checkpoint_tensors(model)]
    is_whole = sum(map(Tensor.numel, tensors)) == sum(map(Tensor.numel, model.parameters()))
    return is_whole and all(tensor.untyped_storage().data_ptr() in own for tensor in tensors)


class _NoContiguousCopies(TorchFunctionMode):
    """Turns ``Tensor.contiguous`` into a no-op: the conversion calls it for files, and the copy would be no view."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func is Tensor.contiguous else func(*args, **(kwargs or {}))
