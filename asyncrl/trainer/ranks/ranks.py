"""
Processes that train one model together.

    rank 0 ─┐
    rank 1 ─┼─ torch.distributed    all_gather   every rank gets the bytes of all ranks
    rank 2 ─┘                       mesh         parameters and gradients are sharded over it

A single process is `SingleRank`, without communication.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from asyncrl.errors import RankDied
from asyncrl.weights.groups.device import BACKENDS, device_name, torch_device
from asyncrl.weights.groups.network_interface import interface_name

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
POLL_S = 0.05


class Ranks(Protocol):
    """One process's view of the ranks. Calls are collective: every rank makes the same calls in the same order."""

    rank: int
    size: int
    device: torch.device
    """Device of this rank's computation."""

    @property
    def mesh(self) -> DeviceMesh | None:
        """Device mesh to shard over; None if the model is not sharded."""

    def all_gather(self, data: bytes) -> list[bytes]:
        """Bytes of every rank, ordered by rank."""


class SingleRank:
    """`Ranks` of a single process."""

    rank = 0
    size = 1
    mesh = None

    def __init__(self, kind: str = "cpu") -> None:
        self.device = torch.device(kind)

    def all_gather(self, data: bytes) -> list[bytes]:
        return [data]


class RankGroup:
    """
    `Ranks` over the process's default torch.distributed group: created here, destroyed by `close`.

    Args:
        store: File that the ranks, and no other process, can open; removed once all have formed the group.
        timeout_s: Longest time that a collective, or forming the group, waits for another rank.
        kind: Type of device; each rank uses the device with its own number.
        is_over: Polled while waiting for the others; True gives up, because the group is no longer needed.

    Raises:
        RankDied: Not all ranks joined in time.
    """

    def __init__(
        self,
        store: Path,
        *,
        rank: int,
        size: int,
        timeout_s: float,
        kind: str = "cpu",
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = torch_device(device_name(kind, rank))
        backend = "gloo" if kind == "cpu" else f"cpu:gloo,{kind}:{BACKENDS[kind]}"  # host tensors travel as well
        with _loopback():
            try:
                if kind != "cpu":
                    torch.get_device_module(kind).set_device(self.device)
                shared = dist.FileStore(str(store), size)  # type: ignore[attr-defined]  # public, but not in the stubs
                self._wait_for_all(shared, timeout_s, is_over)
                dist.init_process_group(
                    backend,
                    store=shared,
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=timeout_s),
                )
                self.mesh: DeviceMesh = init_device_mesh(kind, (size,))
            except (RuntimeError, dist.DistError) as error:
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

    def close(self) -> None:
        """Destroy the group. Idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _wait_for_all(self, store: Any, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Wait for the other ranks. `init_process_group` would wait as well, but cannot be interrupted."""
        store.set(f"here/{self.rank}", b"")
        deadline_s = time.monotonic() + timeout_s
        while missing := [rank for rank in range(self.size) if not store.check([f"here/{rank}"])]:
            if is_over() or time.monotonic() > deadline_s:
                raise RankDied(f"rank {missing[0]} of the trainer's {self.size} did not join")
            time.sleep(POLL_S)


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
def _loopback() -> Iterator[None]:
    """Make gloo listen on the loopback interface unless the environment names one; by default it resolves the host."""
    before = os.environ.get(GLOO_INTERFACE)
    os.environ.setdefault(GLOO_INTERFACE, interface_name("127.0.0.1"))
    try:
        yield
    finally:
        if before is None:
            del os.environ[GLOO_INTERFACE]
