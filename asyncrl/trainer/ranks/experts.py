"""
Expert parallelism: tokens travel to the ranks that hold their experts, and back, in place of the experts' weights.

    rank 0   tokens ─ router ─▶ rows by expert ┐            ┌▶ experts 0 and 1 ┐            ┌▶ sum by weight
                                               ├ all-to-all ┤                  ├ all-to-all ┤
    rank 1   tokens ─ router ─▶ rows by expert ┘            └▶ experts 2 and 3 ┘            └▶ sum by weight

A row is one token on its way to one of its K experts. The experts' parameters [E, ...] are sharded by their first
dimension with or without this, so each rank stores E / n whole experts, and nothing that reads or writes parameters
differs. But they are left out of FSDP's gathering, and computed with where they are: cast from the stored rows, in
grouped products. Every rank takes part in each exchange, also with no row of its own.

A gradient is complete on the owner, because the rows of all ranks of its group came to it; only replicas add theirs.

Source:
    Lepikhin et al. 2020, arXiv:2006.16668 (GShard); the order of operations is that of transformers' ``grouped_mm``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from asyncrl.algo.routing import expert_modules
from asyncrl.errors import ConfigError

PARALLEL = "asyncrl_parallel"
"""Name of the function in transformers."""


class Routes(NamedTuple):
    """Ways of the rows of one layer: R leave this rank, S arrive."""

    departure: Tensor
    """[R] rows in the order in which they leave, by expert; row r is of token r // K."""
    sent: Sequence[int]
    """Rows for each rank; they sum to R."""
    received: Sequence[int]
    """Rows from each rank; they sum to S."""
    arrival: Tensor
    """[S] received rows, in the order of this rank's experts."""
    ends: Tensor
    """[E / n] int32 number of received rows up to the last one of each of this rank's experts."""
    group: dist.ProcessGroup | None
    """Ranks that exchange rows; None for this process alone."""


def require_experts(model: nn.Module, ranks: int, source: str) -> None:
    """
    Raise `ConfigError` unless the experts of a model can be spread over ``ranks``.

    Args:
        ranks: Ranks that share one copy of the model.
        source: Setting and path of the model.
    """
    kind, modules = type(model).__name__, expert_modules(model)
    if not modules:
        raise ConfigError(
            f"{source}: {kind} has no experts that trainer.expert_parallel could spread over the ranks; set it to false"
        )
    for experts in modules:
        plain = hasattr(experts, "gate_up_proj") and not (
            getattr(experts, "has_bias", True) or getattr(experts, "is_transposed", True)
        )
        if not plain:
            raise ConfigError(
                f"{source}: the experts of {kind} have biases, transposed weights or no gate, which "
                f"trainer.expert_parallel does not compute; set it to false"
            )
        if (number := len(experts.get_parameter("down_proj"))) % ranks:
            raise ConfigError(
                f"{source}: {number} experts cannot be spread evenly over the {ranks} ranks that share one copy of the "
                f"model with trainer.expert_parallel; use a trainer.shard_size that divides {number}"
            )


def spread_experts(model: Any, mesh: DeviceMesh) -> set[nn.Parameter]:
    """
    Shard the experts of a model without weights, and have each computed by its owner.

    Args:
        mesh: Its last dimension is over the ranks that share one copy; see `require_experts`.

    Returns:
        Their parameters, for FSDP to leave alone.
    """
    placements = [*[Replicate()] * (mesh.ndim - 1), Shard(0)]
    for experts in expert_modules(model):
        for name, whole in experts.named_parameters(recurse=False):
            own = distribute_tensor(whole.detach(), mesh, placements, src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(own, requires_grad=whole.requires_grad))
    ALL_EXPERTS_FUNCTIONS.register(PARALLEL, _parallel)
    model.set_experts_implementation(PARALLEL)
    return {weight for experts in expert_modules(model) for weight in experts.parameters(recurse=False)}


def compute(experts: Any, states: Tensor, weights: Tensor, routes: Routes, own: tuple[Tensor, Tensor]) -> Tensor:
    """
    [T, H] sum of the outputs of each token's K experts. Collective.

    Args:
        states: [T, H] of this rank's tokens; computed in their dtype.
        weights: [T, K] of the experts of a token.
        own: Projections of this rank's experts, [E / n, 2I, H] and [E / n, H, I], in any dtype.
    """
    rows = _exchanged(states[routes.departure // weights.shape[1]], routes.sent, routes.received, routes.group)
    gate_up = grouped_linear(rows[routes.arrival], own[0], routes.ends)
    out = grouped_linear(experts._apply_gate(gate_up), own[1], routes.ends)[routes.arrival.argsort()]
    out = _exchanged(out, routes.received, routes.sent, routes.group)[routes.departure.argsort()]
    return (out.view(*weights.shape, -1) * weights[..., None]).sum(1).to(states.dtype)


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """
    [S, O] product of each row with the weight of its expert, in the rows' dtype. No copy of the weight outlives it.

    Args:
        rows: [S, I], ordered by expert.
        weight: [E, O, I] in any dtype, which is that of its gradient.
        ends: [E] int32 number of rows up to the last one of each expert.
    """
    product: Tensor = _GroupedLinear.apply(rows, weight, ends)  # type: ignore[no-untyped-call]
    return product


def _parallel(experts: Any, states: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """[T, H] as transformers' own functions: ``indices`` and ``weights`` [T, K] of the experts of each token."""
    gate_up, down = experts.gate_up_proj, experts.down_proj
    mesh: DeviceMesh = gate_up.device_mesh
    routes = _routes(indices, len(gate_up), mesh.get_group(mesh.ndim - 1))
    return compute(experts, states, weights, routes, (_own(gate_up), _own(down)))


def _routes(indices: Tensor, num_experts: int, group: dist.ProcessGroup) -> Routes:
    """``indices`` [T, K] of ``num_experts`` in all. Waits for the device once, for the sizes of the exchange."""
    chosen, ranks = indices.flatten(), group.size()
    sent = chosen.new_zeros(num_experts).scatter_add_(0, chosen, torch.ones_like(chosen))
    received = sent.clone()
    dist.all_to_all_single(received, sent, group=group)
    sent, received = sent.view(ranks, -1), received.view(ranks, -1)  # [ranks, E / n] rows for or from a rank
    leaving, arriving = torch.stack((sent.sum(1), received.sum(1))).tolist()
    own = torch.arange(received.shape[1], device=chosen.device).repeat(ranks)
    expert = own.repeat_interleave(received.flatten(), output_size=sum(arriving))
    ends = received.sum(0).cumsum(0).to(torch.int32)
    return Routes(chosen.argsort(stable=True), leaving, arriving, expert.argsort(stable=True), ends, group)


def _own(parameter: DTensor) -> Tensor:
    """This rank's rows of a parameter. Their gradient is averaged over ranks, as FSDP does with all others."""
    rows = parameter.to_local()
    if rows.requires_grad:
        rows.register_hook(partial(_averaged, parameter.device_mesh))  # type: ignore[no-untyped-call]
    return rows


def _averaged(mesh: DeviceMesh, gradient: Tensor) -> Tensor:
    """The rows of a group's ranks are in the gradient's sum already; those of other groups are not."""
    gradient = gradient / mesh.size()
    for dim in range(mesh.ndim - 1):
        dist.all_reduce(gradient, group=mesh.get_group(dim))
    return gradient


def _exchanged(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """Send rows, ordered by rank, and return those that arrive, ordered by rank. Collective, and in the backward."""
    arrived: Tensor = _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return arrived


class _Exchange(torch.autograd.Function):
    """See `_exchanged`; the gradients of rows travel back as the rows came."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None
    ) -> Tensor:
        ctx.back = received, sent, group
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        if group is not None:
            dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group)
        return arrived

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _exchanged(gradients[0], *ctx.back), None, None, None


class _GroupedLinear(torch.autograd.Function):
    """See `grouped_linear`; the weight is cast anew in each direction."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, ends)
        ctx.weight = weight  # Not among the saved tensors, which may be moved off the device.
        if not len(rows):  # Kernels need not take an empty product.
            return rows.new_empty(0, weight.shape[1])
        return F.grouped_mm(rows, weight.to(rows.dtype).mT, offs=ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (rows, ends), weight = ctx.saved_tensors, ctx.weight
        if not len(rows):
            return torch.zeros_like(rows), torch.zeros_like(weight), None
        of_rows = of_weight = None
        gradient = gradients[0].contiguous()
        if ctx.needs_input_grad[0]:
            of_rows = F.grouped_mm(gradient, weight.to(rows.dtype), offs=ends)
        if ctx.needs_input_grad[1]:
            of_weight = F.grouped_mm(gradient.mT, rows, offs=ends).to(weight.dtype)
        return of_rows, of_weight, None
