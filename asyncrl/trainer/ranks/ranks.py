"""
Processes that train one model together.

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
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from asyncrl.config.addresses import LOOPBACK
from asyncrl.errors import RankDied, TransferError
from asyncrl.trainer.ranks.sequence import ALONE, SequenceGroup
from asyncrl.weights.groups.device import BACKENDS, device_name, make_current, torch_device
from asyncrl.weights.groups.network_interface import INTERFACE, interface_name

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
                self.sequence = _sequence_group(rank, sequence_parallel, timeout)
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


def _sequence_group(rank: int, size: int, timeout: timedelta) -> SequenceGroup:
    if size == 1:
        return ALONE
    group, _ = dist.new_subgroups(size, timeout=timeout)  # type: ignore[no-untyped-call]
    return SequenceGroup(size, rank % size, group)


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
