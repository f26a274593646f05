"""
A process group without torch's global one, so that it can live beside the groups of an engine or a sharded trainer.

    ranks ── meet ─▶ all here, all with the same library ── connect ─▶ a few bytes moved ─▶ Group

Every wait is bounded by a deadline that is handed to the library with each call. Waiting outside for less is not
enough: the library's own thread would go on, and closing the group would wait for it. First connections know their
deadlines badly (gloo) or not at all (NCCL, HCCL), which is why the ranks meet before: only one that dies in between can
still be waited for.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from asyncrl.errors import ConfigError, TransferError
from asyncrl.weights.groups.deadline import SHORTEST_S, Deadline
from asyncrl.weights.interface import told

CPU = torch.device("cpu")

POLL_S = 0.0005
"""Between two looks at a broadcast on a device. One bucket takes milliseconds."""

GLOO_PATIENCE = 5
"""Gloo waits for a connection this many times as long as it is told to (``Pair::waitUntil`` in its tcp/pair.cc)."""

PROOF = 0b1010_0101
"""What the first broadcast of a group on devices carries."""


class _Backend(Protocol):
    """What all collective libraries have in common, as far as we care."""

    def broadcast(self, tensors: list[Tensor], options: c10d.BroadcastOptions, /) -> c10d.Work: ...

    def abort(self) -> None: ...


_Wait = Callable[[c10d.Work, Deadline], None]


class Group:
    """Some ranks that can broadcast to each other. Used by one thread at a time."""

    def __init__(self, backend: _Backend, wait: _Wait) -> None:
        self._backend: _Backend | None = backend
        self._wait = wait

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
        self._wait(self._backend.broadcast([tensor], options), deadline)

    def close(self) -> None:
        """Stop what is still moving, close connections and end the library's threads. Idempotent."""
        backend, self._backend = self._backend, None
        if backend is not None:
            with suppress(RuntimeError):  # it did not stop in time: nothing more can be done, and why we close matters
                backend.abort()  # NCCL's kernels; for the others the destructor is enough


def form(
    backend: str,
    store: c10d.Store,
    rank: int,
    size: int,
    *,
    interface: str,
    deadline: Deadline,
    device: torch.device = CPU,
) -> Group:
    """
    Meet the other ranks and connect to them. Blocks until all are there.

    Args:
        backend: ``gloo``, ``nccl`` or ``hccl``, as `device.backend_for` gave it.
        store: Where the ranks leave their addresses for each other.
        rank: Ours, 0 .. size - 1.
        size: Ranks in the group.
        interface: Address that this rank listens on; no other one is opened.
        deadline: All ranks must be connected by then.
        device: Where the tensors lie.

    Raises:
        ConfigError: The backend is not one of ours, or not in this build of torch, or no interface has the address.
        TransferError: Somebody did not come, or came with another backend; raised by the store for the former.
        RuntimeError: Somebody came, but could not be connected to in time, or no byte arrived.
    """
    if backend == "gloo":
        _meet(store, rank, size, backend)
        return Group(_gloo(store, rank, size, interface, deadline), _wait_inside)
    make = _maker(backend)
    _meet(store, rank, size, backend)
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)  # the current device is the thread's, and this one is new
    with told(backend, interface):
        group = Group(make(store, rank, size, timedelta(seconds=deadline.left_s())), _wait_outside)
        try:
            _prove(group, backend, rank, device, deadline)
        except BaseException:
            group.close()
            raise
    return group


# ── the rendezvous ──────────────────────────────────────────────────────────────────────────


def _meet(store: c10d.Store, rank: int, size: int, backend: str) -> None:
    """Everybody looks for everybody: whoever came can name who did not."""
    store.set(f"library/{rank}", backend)
    for other in range(size):
        theirs = store.get(f"library/{other}").decode()
        if theirs != backend:
            raise TransferError(
                f"rank {other} came with {theirs}, rank {rank} with {backend}: give weights.backend the same value on "
                f"both machines, and both the same kind of device"
            )


# ── libraries ───────────────────────────────────────────────────────────────────────────────


def _gloo(store: c10d.Store, rank: int, size: int, interface: str, deadline: Deadline) -> _Backend:
    gloo: Any = c10d.ProcessGroupGloo  # torch's stubs know neither its options nor its collectives
    options = gloo._Options()
    options._timeout = timedelta(seconds=max(SHORTEST_S, deadline.left_s() / GLOO_PATIENCE))
    options._devices = [gloo.create_device(hostname=interface)]
    made: _Backend = gloo(store, rank, size, options)
    return made


_Maker = Callable[[c10d.Store, int, int, timedelta], _Backend]


def _maker(backend: str) -> _Maker:
    if backend == "nccl" and c10d.is_nccl_available():
        return _nccl
    plugins: dict[str, Any] = c10d.Backend._plugins
    if plugin := plugins.get(backend.upper()):
        return lambda *group: _plugged_in(plugin.creator_fn, *group)
    raise ConfigError(
        f"weights.backend is {backend!r}, which torch {torch.__version__} does not have; it has "
        f"{', '.join(['gloo', *(['nccl'] if c10d.is_nccl_available() else []), *map(str.lower, plugins)])}"
    )


def _nccl(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> _Backend:
    nccl: Any = c10d.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    made: _Backend = nccl(store, rank, size, options)
    return made


def _plugged_in(create: Any, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> _Backend:
    """A library that registered itself with torch under its extended interface, as torch_npu does with HCCL."""
    untyped: Any = c10d  # torch's stubs do not know this name
    options = untyped._DistributedBackendOptions()
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = timeout
    options.group_id = "asyncrl-weights"
    options.global_ranks_in_group = []  # no part of a default group: HCCL would look for that one's communicator
    made: _Backend = create(options, None)
    return made


# ── broadcasts ──────────────────────────────────────────────────────────────────────────────


def _wait_inside(work: c10d.Work, _: Deadline) -> None:
    """Gloo's wait blocks, by the deadline that the broadcast was given."""
    work.wait()


def _wait_outside(work: c10d.Work, deadline: Deadline) -> None:
    """That of a device's library may do no more than put the stream in order, and would tell of no lost peer."""
    while not work.is_completed():
        if deadline.elapsed_s() >= deadline.seconds:
            raise RuntimeError(f"timed out: a broadcast was not over after {deadline.seconds:g} s")
        time.sleep(POLL_S)
    work.wait()


def _prove(group: Group, backend: str, rank: int, device: torch.device, deadline: Deadline) -> None:
    """Connect now, not at the first bucket; and see that bytes move: a binding without its library may do nothing."""
    sent = torch.full((1,), 0 if rank else PROOF, dtype=torch.uint8, device=device)
    group.broadcast(sent, 0, deadline)
    if sent.item() != PROOF:
        raise RuntimeError(f"{backend} ended a broadcast without moving a byte; is its library installed whole?")
