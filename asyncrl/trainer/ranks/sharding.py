"""
Shard a model over ranks: each holds a part of every parameter, gradient and moment, and gathers a layer to use it.

    parameters   [▓▓▓▓|░░░░]  ─ all-gather a layer ─▶ forward, backward ─ reduce-scatter ─▶ [▓▓▓▓|░░░░]   gradients
                 rank 0  rank 1

    float32      stored       ─ cast ─▶ bfloat16, gathered and computed with ─▶ float32, reduced    for "bfloat16"

A model is sharded before it has weights, so that no process ever holds those of others. Gradients are averaged over
ranks; for a sum, multiply the loss by the number of ranks.

Source:
    Zhao et al. 2023, arXiv:2304.11277 (FSDP); torch.distributed.fsdp.fully_shard.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.model.vision import vision_tower
from asyncrl.trainer.ranks.experts import spread_experts
from asyncrl.trainer.ranks.ranks import collective, group_backend

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Computation(nn.Module):
    """
    All that computes with the parameters of a model goes through a call of this module, to which FSDP hooks its
    collectives. Collective if the model is sharded.
    """

    def __init__(self, model: nn.Module, *further: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.further = nn.ModuleList(further)

    def forward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def run(self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call a function that uses the parameters."""
        result: Result = self(function, *args, **kwargs)
        if isinstance(self, FSDPModule) and not torch.is_grad_enabled():
            self.reshard()  # a backward pass would do it
        return result


def shard_model(
    model: PreTrainedModel,
    computation: Computation,
    mesh: DeviceMesh,
    dtype: torch.dtype,
    *,
    on_host: bool = False,
    expert_parallel: bool = False,
) -> None:
    """
    Shard a model layer by layer; its parameters may be without weights. Collective.

    ``dtype`` is that of the gathered parameters and of what is computed with them. Stored parameters keep theirs, and
    gradients are reduced in float32. With ``on_host`` both stay on the host, and are brought to the device by layer.
    With ``expert_parallel`` experts are not gathered; see `spread_experts`.

    A vision tower computes the rotations of its patches in float32, and rounds nothing between its layers.
    """
    ungathered = spread_experts(model, mesh) if expert_parallel else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if on_host else OffloadPolicy()
    kinds = set(model._no_split_modules or ())
    tower = vision_tower(model)
    of_tower = {*tower.modules()} if tower else set()
    for module in model.modules():
        if type(module).__name__ in kinds:
            rounding = replace(policy, cast_forward_inputs=module not in of_tower)
            fully_shard(module, mesh=mesh, mp_policy=rounding, offload_policy=offload, ignored_params=ungathered)
    fully_shard(computation, mesh=mesh, mp_policy=policy, offload_policy=offload, ignored_params=ungathered)


def lone_mesh(device: torch.device) -> DeviceMesh:
    """Mesh of this process alone. Forms the default group of torch.distributed if there is none."""
    if not dist.is_initialized():
        dist.init_process_group(group_backend(device.type), store=HashStore(), rank=0, world_size=1)
    if dist.get_world_size() == 1:
        return init_device_mesh(device.type, (1,))
    own = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return DeviceMesh.from_group(own, device.type)


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has, sharded and placed like ``like``."""
    if isinstance(like, DTensor):
        tensor = tensor.detach().to(like.device_mesh.device_type)
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return tensor.to(like.device)


def full_tensor(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """
    All of a tensor that may be sharded, on the device of the ranks. Collective if it is sharded.

    ``dtype`` is that of the result; None keeps the tensor's. No copy besides the result is made of rows.
    """
    if not isinstance(tensor, DTensor):
        return tensor.to(dtype or tensor.dtype)
    with collective():
        if (dim := _sharded_dim(tensor)) is not None:
            return _gather_rows(tensor, dim, dtype or tensor.dtype)
        whole: Tensor = tensor.to(tensor.device_mesh.device_type).full_tensor().to(dtype or tensor.dtype)  # type: ignore[attr-defined]
        return whole


def local_rows(tensor: Tensor) -> tuple[Tensor, range]:
    """This rank's rows of a tensor, and their numbers."""
    if not isinstance(tensor, DTensor):
        return tensor, range(tensor.shape[0] if tensor.dim() else 1)
    rows = range(tensor.shape[0])
    for dim, placement in enumerate(tensor.placements):
        if placement.is_shard(0):
            rows = chunk(rows, tensor.device_mesh.size(dim), tensor.device_mesh.get_local_rank(dim))
        elif not placement.is_replicate():
            raise BrokenInvariant(f"a parameter is placed as {placement}; expected Shard(0) or Replicate()")
    local = tensor.to_local()
    if len(local) != len(rows):
        raise BrokenInvariant(f"a rank has {len(local)} rows of a parameter; expected {len(rows)}")
    return local, rows


def chunk(rows: range, num_chunks: int, index: int) -> range:
    """Rows of one rank: chunks have the same size, except for the last ones (`torch.chunk`)."""
    size = -(-len(rows) // num_chunks)
    return rows[index * size : (index + 1) * size]


def _sharded_dim(tensor: DTensor) -> int | None:
    """Dimension of the mesh over whose ranks the rows are; None if it is another placement."""
    dims = [dim for dim, placement in enumerate(tensor.placements) if placement.is_shard(0)]
    others = [placement for placement in tensor.placements if not placement.is_shard(0)]
    return dims[0] if len(dims) == 1 and all(placement.is_replicate() for placement in others) else None


def _gather_rows(tensor: DTensor, dim: int, dtype: torch.dtype) -> Tensor:
    """
    Each rank casts its rows into the result, and broadcasts them from there.

    An all-gather takes a copy of the own rows, and gloo's one of the result.
    """
    mesh = tensor.device_mesh
    local, rows = local_rows(tensor)
    whole = torch.empty(tensor.shape, dtype=dtype, device=mesh.device_type)
    whole[rows.start : rows.stop].copy_(local)
    if mesh.size(dim) > 1:
        group = mesh.get_group(dim)
        parts = [
            whole[part.start : part.stop]
            for part in (chunk(range(len(whole)), mesh.size(dim), source) for source in range(mesh.size(dim)))
        ]
        running = [
            dist.broadcast(part, group=group, group_src=source, async_op=True)
            for source, part in enumerate(parts)
            if len(part)
        ]
        for work in running:
            work.wait()
    return whole
