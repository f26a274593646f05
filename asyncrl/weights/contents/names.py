"""
Checkpoint names and shapes of a model's tensors: the common format of the trainer and all engines.

    in the model      experts.gate_up_proj [E, 2I, H]          one tensor, so that one kernel computes all experts
                           │  sliced and transposed, never copied
    in a checkpoint   experts.0.gate_proj.weight [I, H] ··· experts.E-1.up_proj.weight

A dense model has the same names in both. Tied tensors occur once. Names depend only on the model's architecture: a
model without weights (torch's ``meta`` device) has the same names as a loaded one.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple

import torch
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
    yield from renamed(model, {name: parameter.detach() for name, parameter in model.named_parameters()}).items()


def renamed(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with the names and shapes of a model's parameters, as a checkpoint names and shapes them."""
    if not isinstance(model, PreTrainedModel):
        return dict(tensors)
    unloaded = copy(model)
    unloaded._weight_conversions = None  # drop those of the loaded files, whose format may differ
    with _NoContiguousCopies():
        return dict(revert_weight_conversion(unloaded, dict(tensors)))


class View(NamedTuple):
    """A tensor of a checkpoint as a strided view of a contiguous parameter; offset and stride are in elements."""

    name: str
    parameter: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def select(self, parameter: Tensor) -> Tensor:
        """This tensor of a checkpoint, as a view of the whole ``parameter`` it lies in."""
        whole = parameter.contiguous()
        return whole.as_strided(self.shape, self.stride, whole.storage_offset() + self.offset)


def checkpoint_views(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[View] | None:
    """
    Some of a model's tensors as a checkpoint has them, tensor by tensor; None for the families that store copies.

    Only names and shapes are read: the tensors may be sharded, or have no values yet.
    """
    twins = {name: torch.empty(tensor.shape, device="meta") for name, tensor in tensors.items()}
    owners = {twin.untyped_storage()._cdata: name for name, twin in twins.items()}
    views: dict[str, list[View]] = {name: [] for name in twins}
    for name, part in renamed(model, twins).items():
        if (owner := owners.get(part.untyped_storage()._cdata)) is None:
            return None
        views[owner].append(View(name, owner, tuple(part.shape), part.stride(), int(part.storage_offset())))
    return [view for of_parameter in views.values() for view in of_parameter]


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that a checkpoint holds, by their names in the model; tied ones once. Borrowed."""
    state = model.state_dict(keep_vars=True)
    buffers = {name: tensor for name, tensor in state.items() if not isinstance(tensor, nn.Parameter)}
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | buffers


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
