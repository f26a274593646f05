"""
What a model's tensors are called and shaped in a checkpoint: the one language trainer and engines of any make speak.

    in the model      experts.gate_up_proj [E, 2I, H]          one tensor, so that one kernel computes all experts
                           │  cut, turned, never copied
    in a checkpoint   experts.0.gate_proj.weight [I, H] ··· experts.E-1.up_proj.weight

A dense model's tensors have the same names in both, and cost nothing here. Tied tensors come once.

Names depend on the kind of model alone, not on how or whether it was loaded: one without weights (torch's ``meta``
device) has the same ones.
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
    """
    What a transfer of ``model`` moves.

    Args:
        model: Needs no weights.
        dtype: What every tensor travels as, by torch's name of it.
    """
    return [TensorSpec(name=name, shape=tuple(part.shape), dtype=dtype) for name, part in checkpoint_tensors(model)]


def checkpoint_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """
    A model's parameters as a checkpoint has them, in the order of `checkpoint_specs`.

    Views, valid while the parameters stay where they are: what is written into one is in the model. The few families
    that store rows in another order than they save them are the exception; `are_views` tells.
    """
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if isinstance(model, PreTrainedModel):
        unloaded = copy(model)
        unloaded._weight_conversions = None  # those of the files it came from, which may be in a form of their own
        with _Uncopied():
            tensors = revert_weight_conversion(unloaded, tensors)
    yield from tensors.items()


def are_views(model: nn.Module) -> bool:
    """Whether who writes into the `checkpoint_tensors` writes all of ``model``, which must have weights."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    tensors = [tensor for _, tensor in checkpoint_tensors(model)]
    is_whole = sum(map(Tensor.numel, tensors)) == sum(map(Tensor.numel, model.parameters()))
    return is_whole and all(tensor.untyped_storage().data_ptr() in own for tensor in tensors)


class _Uncopied(TorchFunctionMode):
    """Leaves cut and turned tensors where they are: the conversion wants them contiguous, for files."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func is Tensor.contiguous else func(*args, **(kwargs or {}))
