"""
The processes that train one model together, as each of them sees the others.

    rank 0 ─┐
    rank 1 ─┼─ torch.distributed    gather   everybody gets what everybody said
    rank 2 ─┘                       mesh     what parameters and gradients are sharded over

One process alone is a group of one, in which nothing travels.
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
from asyncrl.weights.interface import interface_name

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
POLL_S = 0.05


class Ranks(Protocol):
    """One member's view. Calls are collective: every rank makes the same ones in the same order."""

    rank: int
    size: int
    device: torch.device
    """Where this one computes."""

    @property
    def mesh(self) -> DeviceMesh | None:
        """What to shard over; None if there is nothing to share."""

    def gather(self, said: bytes) -> list[bytes]:
        """What every rank said, by rank."""


class Alone:
    """A group of one."""

    rank = 0
    size = 1
    mesh = None

    def __init__(self, kind: str = "cpu") -> None:
        self.device = torch.device(kind)

    def gather(self, said: bytes) -> list[bytes]:
        return [said]


class Group:
    """
    The process's default group of torch.distributed: made here, ended by `close`.

    Args:
        store: A file that all ranks can open, and nobody else; gone when all have formed the group.
        rank: This process.
        size: All of them.
        timeout_s: No collective waits longer for a rank that does not come.
        kind: Of the devices they compute on, each on the one of its number.
        is_over: Asked while the others are waited for: nobody needs the group any more.

    Raises:
        RankDied: They did not all come in time.
        ConfigError: There is no device of this number.
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
        backend = "gloo" if kind == "cpu" else f"cpu:gloo,{kind}:{BACKENDS[kind]}"  # the host's tensors move as well
        with _loopback():
            try:
                if kind != "cpu":
                    torch.get_device_module(kind).set_device(self.device)
                shared = dist.FileStore(str(store), size)  # type: ignore[attr-defined]  # it is public all the same
                self._meet(shared, timeout_s, is_over)
                dist.init_process_group(
                    backend,
                    store=shared,
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=timeout_s),
                )
                self.mesh: DeviceMesh = init_device_mesh(kind, (size,))
            except (RuntimeError, dist.DistError) as error:
                raise RankDied(f"the {size} ranks of the trainer did not find each other: {error}") from error

    def gather(self, said: bytes) -> list[bytes]:
        length = torch.tensor([len(said)])
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        with collective():
            dist.all_gather(lengths, length)
        width = max(int(length) for length in lengths)
        if not width:
            return [b""] * self.size
        own = torch.zeros(width, dtype=torch.uint8)
        own[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else own[:0]
        heard = [torch.empty_like(own) for _ in range(self.size)]
        with collective():
            dist.all_gather(heard, own)
        return [bytes(part[: int(length)].numpy()) for part, length in zip(heard, lengths, strict=True)]

    def close(self) -> None:
        """End the group. Idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _meet(self, store: Any, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Wait until all are here. What forms the group waits too, but for so long that whoever asks is kept."""
        store.set(f"here/{self.rank}", b"")
        deadline_s = time.monotonic() + timeout_s
        while missing := [rank for rank in range(self.size) if not store.check([f"here/{rank}"])]:
            if is_over() or time.monotonic() > deadline_s:
                raise RankDied(f"rank {missing[0]} of the trainer's {self.size} did not come")
            time.sleep(POLL_S)


@contextmanager
def collective() -> Iterator[None]:
    """What a collective raises when a peer is gone, as an error of ours. Without peers, or memory, it is another."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, dist.DistError) as error:
        if not dist.is_initialized():
            raise
        raise RankDied(f"a rank of the trainer is gone, or stuck: {str(error).splitlines()[0]}") from error


@contextmanager
def _loopback() -> Iterator[None]:
    """Gloo listens where the environment says, or else wherever this machine's name leads."""
    before = os.environ.get(GLOO_INTERFACE)
    os.environ.setdefault(GLOO_INTERFACE, interface_name("127.0.0.1"))
    try:
        yield
    finally:
        if before is None:
            del os.environ[GLOO_INTERFACE]
