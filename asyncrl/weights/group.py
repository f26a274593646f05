"""
A process group without torch's global one, so that it can live beside the groups of an engine or a sharded trainer.

Every wait is bounded by a deadline that is handed to the library with each call. Waiting outside for less is not
enough: the library's own thread would go on, and closing the group would wait for it.
"""

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.weights.deadline import Deadline


class _Backend(Protocol):
    """What all collective libraries have in common, as far as we care."""

    def broadcast(self, tensors: list[Tensor], options: c10d.BroadcastOptions, /) -> c10d.Work: ...


class Group:
    """Some ranks that can broadcast to each other. Used by one thread at a time."""

    def __init__(self, backend: _Backend) -> None:
        self._backend: _Backend | None = backend

    def broadcast(self, tensor: Tensor, root: int, deadline: Deadline) -> None:
        """
        Copy ``tensor`` of rank ``root`` into everybody's. Blocks, without holding the GIL.

        Raises:
            RuntimeError: A peer is gone, or the time is up. The group is of no use afterwards.
        """
        if self._backend is None:
            raise RuntimeError("the group is closed")
        options = c10d.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        options.timeout = timedelta(seconds=deadline.left_s())
        self._backend.broadcast([tensor], options).wait()

    def close(self) -> None:
        """Close connections and end the library's threads. Idempotent."""
        self._backend = None  # it has no close of its own: its destructor does it


def form(backend: str, store: c10d.Store, rank: int, size: int, *, interface: str, deadline: Deadline) -> Group:
    """
    Meet the other ranks and connect to them. Blocks until all are there.

    Args:
        backend: ``gloo``.
        store: Where the ranks leave their addresses for each other.
        rank: Ours, 0 .. size - 1.
        size: Ranks in the group.
        interface: Address that this rank listens on; no other one is opened.
        deadline: All ranks must be connected by then.

    Raises:
        ConfigError: The backend is not one of ours.
        TransferError: Raised by the store: somebody did not come.
        RuntimeError: Somebody came, but could not be connected to in time.
    """
    match backend:
        case "gloo":
            return Group(_gloo(store, rank, size, interface, deadline))
        case _:
            raise ConfigError(f"weights.backend is {backend!r}: only 'gloo' is supported")


def _gloo(store: c10d.Store, rank: int, size: int, interface: str, deadline: Deadline) -> _Backend:
    gloo: Any = c10d.ProcessGroupGloo  # torch's stubs know neither its options nor its collectives
    options = gloo._Options()
    options._timeout = timedelta(seconds=deadline.left_s())
    options._devices = [gloo.create_device(hostname=interface)]
    made: _Backend = gloo(store, rank, size, options)
    return made
