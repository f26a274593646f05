"""
Ranks: processes that train one model together, and those of them that share each packed row.

    rank 0 ─┐
    rank 1 ─┼─ torch.distributed    all_gather   every rank gets the bytes of all ranks
    rank 2 ─┘                       broadcast    every rank gets the bytes of one
                                    mesh         parameters and gradients are sharded over it

``rank`` counts the processes of all machines, the local rank those of one machine: it is the number of the device. A
single process is `SingleRank`, without communication.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import gcd
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from asyncrl.errors import RankDied, TransferError
from asyncrl.weights.groups.device import BACKENDS, device_name, make_current, torch_device
from asyncrl.weights.groups.network_interface import INTERFACE, interface_name
from asyncrl.wire.addresses import LOOPBACK

# ── sequence ──────────────────────────────────────────────────────────────────────────────────
# Ranks that share each packed row: every one computes a slice of its positions, and attention for a part of the
# heads.
#
#     rank 0    positions 0 1, heads a b c d ─┐              ┌─ positions 0 1 2 3, heads a b     attention over the row
#                                             ├─ all-to-all ─┤
#     rank 1    positions 2 3, heads a b c d ─┘              └─ positions 0 1 2 3, heads c d     and all-to-all back
#
# Activations and logits of a rank are those of its slice. The loss needs numbers of whole trajectories: each rank
# computes that of the whole row from one number per token, and its gradient of the tokens of its own slice.
#
# Source:
#     Jacobs et al. 2023, arXiv:2309.14509 (DeepSpeed Ulysses).


class SequenceGroup:
    """
    One rank's view of the adjacent ranks that share a row; by default, a rank that shares it with none.

    Args:
        size: Number of ranks.
        index: Place of this rank among them.
        group: Process group of these ranks; None if there is one alone, or if tensors have no memory (``meta``).
    """

    def __init__(self, size: int = 1, index: int = 0, group: dist.ProcessGroup | None = None) -> None:
        self.size = size
        self.index = index
        self.group = group

    @property
    def is_first(self) -> bool:
        """True for the rank that reports what all ranks of the group compute alike."""
        return self.index == 0

    def own(self, width: int) -> slice:
        """Positions of this rank in a row of ``width``, a multiple of `size`."""
        part = width // self.size
        return slice(self.index * part, (self.index + 1) * part)

    def to_heads(self, part: Tensor) -> Tensor:
        """
        From all heads at this rank's positions, [1, heads, W / size, D], to its part of the heads over the row,
        [1, heads / size, W, D]. Collective, and so is the gradient.

        Heads of keys and values that the ranks do not divide are repeated first, each for its own queries.
        """
        if repeats := self.size // gcd(part.shape[1], self.size) - 1:
            part = part.repeat_interleave(repeats + 1, 1)
        return self._turn(part)

    def to_positions(self, out: Tensor) -> Tensor:
        """
        From this rank's heads over the row, [1, W, heads / size, D], to all heads at its positions,
        [1, W / size, heads, D]. Collective, and so is the gradient.
        """
        return self._turn(out)

    def gather(self, own: Tensor, places: Tensor, number: int) -> Tensor:
        """
        Numbers of all N tokens from those of each rank's tokens, the same on every rank of the group. Collective.

        Carries the gradient of a loss that every rank computes alike: a rank keeps that of its own tokens.

        Args:
            own: [n] numbers of this rank's tokens.
            places: [n] indices of its tokens among all.
            number: N; each token is of one rank.
        """
        if self.size == 1:
            return own
        whole: Tensor = _Gather.apply(own, places, number, self.group)  # type: ignore[no-untyped-call]
        return whole

    def exchange(self, pieces: Tensor) -> Tensor:
        """All-to-all of [size, ...], a piece for each rank. Returns the same, a piece from each."""
        received: Tensor = _SequenceExchange.apply(pieces, self.group)  # type: ignore[no-untyped-call]
        return received

    def _turn(self, part: Tensor) -> Tensor:
        """[1, A, B, D] to [1, A / size, size · B, D]."""
        if self.size == 1:
            return part
        received = self.exchange(part.reshape(self.size, -1, *part.shape[2:]))
        return received.transpose(0, 1).flatten(1, 2)[None]


ALONE = SequenceGroup()


class _SequenceExchange(torch.autograd.Function):
    """[size, ...]: piece i goes to rank i, and one comes from each. The gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _exchanged(pieces, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grad, ctx.group), None


def _exchanged(pieces: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    pieces = pieces.contiguous()
    received = torch.empty_like(pieces)
    if not pieces.is_meta:
        dist.all_to_all_single(received, pieces, group=group)
    return received


class _Gather(torch.autograd.Function):
    """[n] of each rank to [N]; the gradient takes this rank's tokens, because all ranks have the same one."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, places: Tensor, number: int, group: dist.ProcessGroup | None) -> Tensor:
        ctx.save_for_backward(places)
        whole = own.new_zeros(number).index_copy_(0, places, own)
        if number:
            dist.all_reduce(whole, group=group)  # zeros and one number for each token
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grad[places], None, None, None


# ── ranks ─────────────────────────────────────────────────────────────────────────────────────

INTERFACES = INTERFACE | {"gloo": "GLOO_SOCKET_IFNAME"}
"""Variable of the network interface, by library."""


class Ranks(Protocol):
    """One process's view of the ranks. Calls are collective: every rank makes the same calls in the same order."""

    rank: int
    size: int
    device: torch.device
    """Device of this rank's computation."""

    sequence: SequenceGroup
    """Ranks that share a row with this one."""

    @property
    def mesh(self) -> DeviceMesh | None:
        """Device mesh to shard over; None if the model is not sharded."""

    def all_gather(self, data: bytes) -> list[bytes]:
        """Bytes of every rank, ordered by rank."""

    def broadcast(self, data: bytes, source: int) -> bytes:
        """The ``data`` of rank ``source``; that of the others is ignored."""


class SingleRank:
    """`Ranks` of a single process, on the first device of a kind; raises `ConfigError` if there is none."""

    rank = 0
    size = 1
    mesh = None
    sequence = ALONE

    def __init__(self, kind: str = "cpu") -> None:
        self.device = torch_device(device_name(kind))

    def all_gather(self, data: bytes) -> list[bytes]:
        return [data]

    def broadcast(self, data: bytes, source: int) -> bytes:
        if source:
            raise ValueError(f"a single rank has no rank {source}")
        return data


class RankGroup:
    """
    `Ranks` over the process's default torch.distributed group: created here, destroyed by `close`.

    Args:
        store: Shared by the ranks alone; used until the group is formed, and for the first time.
        device_index: Number of this rank's device on its machine.
        timeout_s: Longest time that a collective, or forming the group, waits for another rank.
        kind: Type of device.
        interface: Address whose network interface the libraries use, unless the environment names one.
        shard_size: Ranks that share one copy of the model, a divisor of ``size``; 0 takes all of them.
        sequence_parallel: Adjacent ranks that share each packed row, a divisor of ``size``.

    Raises:
        RankDied: Not all ranks joined in time; raised by the store too.
        ConfigError: There is no such device or interface.
    """

    def __init__(
        self,
        store: c10d.Store,
        *,
        rank: int,
        size: int,
        timeout_s: float,
        device_index: int = 0,
        kind: str = "cpu",
        interface: str = LOOPBACK,
        shard_size: int = 0,
        sequence_parallel: int = 1,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = torch_device(device_name(kind, device_index))
        with _interface(kind, interface):
            try:
                timeout = timedelta(seconds=timeout_s)
                make_current(self.device)
                _wait_for_all(store, rank, size)
                dist.init_process_group(
                    group_backend(kind),
                    store=store,
                    rank=rank,
                    world_size=size,
                    timeout=timeout,
                )
                self.mesh: DeviceMesh = _mesh(kind, size, shard_size or size, timeout)
                self.sequence = ALONE
                if sequence_parallel > 1:
                    sharing, _ = dist.new_subgroups(sequence_parallel, timeout=timeout)  # type: ignore[no-untyped-call]
                    self.sequence = SequenceGroup(sequence_parallel, rank % sequence_parallel, sharing)
                if kind != "cpu":  # Connect now: at its first use, the library would lack variables and store.
                    for group in (None, self.sequence.group):
                        dist.all_reduce(torch.zeros(1, device=self.device), group=group)
            except (TransferError, RuntimeError, dist.DistError) as error:
                self.close()
                raise RankDied(f"the {size} ranks of the trainer could not form a group: {error}") from error

    def all_gather(self, data: bytes) -> list[bytes]:
        length = torch.tensor([len(data)])
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        with collective():
            dist.all_gather(lengths, length)
        width = max(int(length) for length in lengths)
        if not width:
            return [b""] * self.size
        own = torch.zeros(width, dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
        received = [torch.empty_like(own) for _ in range(self.size)]
        with collective():
            dist.all_gather(received, own)
        return [bytes(part[: int(length)].numpy()) for part, length in zip(received, lengths, strict=True)]

    def broadcast(self, data: bytes, source: int) -> bytes:
        length = torch.tensor([len(data)])
        with collective():
            dist.broadcast(length, source)
        received = torch.empty(int(length), dtype=torch.uint8)
        if not len(received):
            return b""
        if self.rank == source:
            received.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with collective():
            dist.broadcast(received, source)
        return received.numpy().tobytes()

    def abort(self) -> None:
        """End a device's collective that another thread waits for; gloo's end with `shut_down`. The group is dead."""
        if self.device.type != "cpu" and dist.is_initialized():
            for group in list(c10d._world.pg_map):  # those of the mesh and of the sequence too
                backend: Any = group._get_backend(self.device)  # the stubs lack `abort`
                backend.abort()

    def close(self) -> None:
        """Destroy the group. Idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()


def group_backend(kind: str) -> str:
    """Libraries of a group of torch.distributed whose ranks compute on a kind of device; host tensors travel too."""
    return "gloo" if kind == "cpu" else f"cpu:gloo,{kind}:{BACKENDS[kind]}"


def _mesh(kind: str, size: int, shard_size: int, timeout: timedelta) -> DeviceMesh:
    """Mesh to shard over; with several copies of the model, its first dimension is over the copies."""
    if shard_size == size:
        return init_device_mesh(kind, (size,))
    ranks = torch.arange(size).view(size // shard_size, shard_size)
    groups = [  # Made here, because a mesh gives its groups the timeout of the library.
        dist.new_subgroups_by_enumeration(part.tolist(), timeout=timeout)[0]  # type: ignore[no-untyped-call]
        for part in (ranks.T, ranks)
    ]
    return DeviceMesh.from_group(groups, kind, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _wait_for_all(store: c10d.Store, rank: int, size: int) -> None:
    """Wait for the other ranks. `init_process_group` would wait as well, but cannot be interrupted."""
    store.set(f"here/{rank}", "here")
    for other in range(size):
        store.get(f"here/{other}")


@contextmanager
def collective() -> Iterator[None]:
    """Turn errors of a collective into `RankDied`, except lack of memory and errors without a process group."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, dist.DistError) as error:
        if not dist.is_initialized():
            raise
        raise RankDied(f"a rank of the trainer is dead or stuck: {str(error).splitlines()[0]}") from error


@contextmanager
def _interface(kind: str, address: str) -> Iterator[None]:
    """
    Make the libraries use the interface of ``address`` unless the environment names one.

    By default gloo resolves the name of the host, and the others take any interface.
    """
    variables = {INTERFACES["gloo"], INTERFACES[BACKENDS[kind]]} - os.environ.keys()
    for variable in variables:  # NCCL and HCCL take "=" for "exactly this one".
        os.environ[variable] = ("" if variable == INTERFACES["gloo"] else "=") + interface_name(address)
    try:
        yield
    finally:
        for variable in variables:
            os.environ.pop(variable, None)
