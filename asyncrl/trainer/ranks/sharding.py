"""
Shard a model over ranks: each holds a part of every parameter, gradient and moment, and gathers a layer to use it.

    parameters   [▓▓▓▓|░░░░]  ─ all-gather a layer ─▶ forward, backward ─ reduce-scatter ─▶ [▓▓▓▓|░░░░]   gradients
                 rank 0  rank 1

Gradients are averaged over ranks; for a sum, multiply the loss by the number of ranks.

Source:
    Zhao et al. 2023, arXiv:2304.11277 (FSDP); torch.distributed.fsdp.fully_shard.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from asyncrl.trainer.ranks.ranks import collective


def shard_model(model: PreTrainedModel, computation: nn.Module, mesh: DeviceMesh) -> None:
    """
    Shard a model, whose parameters are the same on every rank, layer by layer. Collective.

    ``computation`` contains the model and is called to compute with it: nothing else may use the parameters.
    """
    kinds = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in kinds:
            fully_shard(module, mesh=mesh)
    fully_shard(computation, mesh=mesh)


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has, sharded and placed like ``like``."""
    if isinstance(like, DTensor):
        tensor = tensor.detach().to(like.device_mesh.device_type)
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return tensor.to(like.device)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded. Collective if it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    with collective():
        return tensor.full_tensor()
