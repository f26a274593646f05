"""
A process group outside torch's default group, so that engines and sharded trainers can have groups of their own.

    ranks ── rendezvous ─▶ all present, same library ── connect ─▶ one byte broadcast ─▶ Group

Every wait is bounded by a deadline, which the library gets with each call. A shorter wait outside the library would not
be enough: the library's thread would continue, and closing the group would wait for it. While connecting, gloo respects
a deadline poorly, and NCCL and HCCL not at all. Ranks therefore rendezvous first, and only a rank that dies between the
rendezvous and the connection can exceed the deadline.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from asyncrl.errors import ConfigError, TransferError
from asyncrl.weights.groups.device import make_current
from asyncrl.weights.groups.network_interface import SHORTEST_S, Deadline, collective_environment, why_unreachable
from asyncrl.weights.groups.shared_memory import form_shared

CPU = torch.device("cpu")

POLL_S = 0.0005
"""Polling interval of a broadcast on a device. One bucket takes milliseconds."""

LOOK_S = 0.1
"""Interval in which a wait for gloo looks whether the deadline is over."""

CLOSING_THREAD = "asyncrl-weights-close"

GLOO_TIMEOUT_FACTOR = 5
"""Gloo waits for a connection this many times its timeout (``Pair::waitUntil`` in its tcp/pair.cc)."""

PROBE = 0b1010_0101
"""Byte of the first broadcast of a group on devices."""


class _Backend(Protocol):
    def broadcast(self, tensors: list[Tensor], options: c10d.BroadcastOptions, /) -> c10d.Work: ...

    def abort(self) -> None: ...


class ProcessGroup(Protocol):
    """A connected process group. Not thread-safe."""

    def broadcast(self, tensor: Tensor, root: int, deadline: Deadline, /) -> None:
        """
        Copy ``tensor`` of rank ``root`` to all ranks. Blocks, without holding the GIL.

        Raises:
            RuntimeError: A peer is gone, or the deadline has passed. The group is unusable afterwards.
        """

    def close(self) -> None:
        """Abort a running broadcast, and close connections. Idempotent."""


class LibraryGroup:
    """A `ProcessGroup` of a collective library that ends an unfinished broadcast when it is aborted."""

    def __init__(self, backend: _Backend) -> None:
        self._backend: _Backend | None = backend
        self._work: c10d.Work | None = None
        """The last broadcast."""

    def broadcast(self, tensor: Tensor, root: int, deadline: Deadline) -> None:
        """Copy ``tensor`` of rank ``root`` to all ranks; see `ProcessGroup.broadcast`."""
        if self._backend is None:
            raise RuntimeError("the group is closed")
        options = c10d.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        options.timeout = timedelta(seconds=deadline.left_s())
        self._work = self._backend.broadcast([tensor], options)
        self._wait(self._work, deadline)

    def close(self) -> None:
        """Abort a running broadcast, close connections, and end the library's threads. Idempotent."""
        backend, self._backend = self._backend, None
        if backend is not None:
            self._end(backend)

    def _wait(self, work: c10d.Work, deadline: Deadline) -> None:
        """Wait for a device's library, whose ``wait`` may only order streams and does not report a lost peer."""
        while not work.is_completed():
            if deadline.has_passed:
                raise RuntimeError(f"timed out: a broadcast did not finish within {deadline.seconds:g} s")
            time.sleep(POLL_S)
        work.wait()

    def _end(self, backend: _Backend) -> None:
        _abort(backend)


class GlooGroup(LibraryGroup):
    """
    A `ProcessGroup` of gloo, which has no call that ends an unfinished broadcast: it ends by its own deadline.

    Gloo tells a broken connection to whatever waits for a message to begin, not to what is in the middle of one
    (``Pair::signalException`` in its tcp/pair.cc): that waits on.
    """

    def _wait(self, work: c10d.Work, deadline: Deadline) -> None:
        """Wait for the library, and leave when the deadline is over."""
        while True:
            try:
                work.wait(timedelta(seconds=LOOK_S))
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # Its own error, or none if it ended a moment ago.
                    return
                if deadline.has_passed:
                    late = f"Timed out: a broadcast did not finish within {deadline.elapsed_s():.3g} s"
                    raise RuntimeError(late) from None
            else:
                return

    def _end(self, backend: _Backend) -> None:
        """Leave what is not finished to a thread: gloo's destructor waits for it, and holds the GIL meanwhile."""
        if self._work and not self._work.is_completed():
            threading.Thread(target=_abort_later, args=(backend, self._work), name=CLOSING_THREAD, daemon=True).start()
        else:
            _abort(backend)


def _abort_later(backend: _Backend, work: c10d.Work) -> None:
    with suppress(RuntimeError):
        work.wait()
    _abort(backend)


def _abort(backend: _Backend) -> None:
    with suppress(RuntimeError):  # raised if the abort timed out; must not hide the error that closes the group
        backend.abort()  # needed for NCCL's kernels; the destructors of the others suffice


def form(
    backend: str, store: Store, rank: int, size: int, *, interface: str, deadline: Deadline, device: torch.device = CPU
) -> ProcessGroup:
    """
    Rendezvous with the other ranks through ``store``, and connect to them. Blocks until all ranks are connected.

    Args:
        backend: ``gloo``, ``shared``, ``nccl`` or ``hccl``, as `device.backend_for` returns it.
        interface: The only address on which this rank listens.

    Raises:
        ConfigError: The backend is unknown or not in this build of torch, or no interface has the address.
        TransferError: A rank did not join (raised by the store), joined with another backend, or cannot reach this one.
        RuntimeError: A rank joined, but could not be connected to by the deadline, or no byte arrived.
    """
    if backend == "shared":
        _rendezvous(store, rank, size, backend, interface)
        return form_shared(store, rank, size, deadline)
    if backend == "gloo":
        _rendezvous(store, rank, size, backend, interface)
        return GlooGroup(_gloo(store, rank, size, interface, deadline))
    construct = _constructor(backend)
    _rendezvous(store, rank, size, backend, interface)
    make_current(device)
    with collective_environment(backend, interface, deadline.seconds):
        group = LibraryGroup(construct(store, rank, size, timedelta(seconds=deadline.left_s())))
        try:
            _verify(group, backend, rank, device, deadline)
        except BaseException:
            group.close()
            raise
    return group


def _rendezvous(store: Store, rank: int, size: int, backend: str, interface: str) -> None:
    """Every rank waits for every other rank, so that an error can name the ranks that did not join."""
    store.set(f"rank/{rank}", f"{backend} {interface}")
    for other in range(size):
        theirs, _, address = store.get(f"rank/{other}").decode().partition(" ")
        if theirs != backend:
            raise TransferError(
                f"rank {other} uses {theirs}, rank {rank} uses {backend}: set weights.backend to the same value on "
                f"both machines, and use the same kind of device on both"
            )
        if reason := why_unreachable(interface, address):
            raise TransferError(f"rank {other}, at {address}, cannot connect to rank {rank}, at {interface}: {reason}")


def _gloo(store: Store, rank: int, size: int, interface: str, deadline: Deadline) -> _Backend:
    gloo: Any = c10d.ProcessGroupGloo  # torch's stubs lack its options and collectives
    options = gloo._Options()
    options._timeout = timedelta(seconds=max(SHORTEST_S, deadline.left_s() / GLOO_TIMEOUT_FACTOR))
    options._devices = [gloo.create_device(hostname=interface)]
    return cast("_Backend", gloo(store, rank, size, options))


def _constructor(backend: str) -> Callable[[Store, int, int, timedelta], _Backend]:
    if backend == "nccl" and c10d.is_nccl_available():
        return _nccl
    plugins: dict[str, Any] = c10d.Backend._plugins
    if plugin := plugins.get(backend.upper()):
        return lambda *group: _plugged_in(plugin.creator_fn, *group)
    raise ConfigError(
        f"weights.backend is {backend!r}, which torch {torch.__version__} does not support; it supports "
        f"{', '.join(['gloo', *(['nccl'] if c10d.is_nccl_available() else []), *map(str.lower, plugins)])}"
    )


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> _Backend:
    nccl: Any = c10d.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    return cast("_Backend", nccl(store, rank, size, options))


def _plugged_in(create: Any, store: Store, rank: int, size: int, timeout: timedelta) -> _Backend:
    """A library registered with torch's extended backend interface, as torch_npu registers HCCL."""
    untyped: Any = c10d  # torch's stubs lack this name
    options = untyped._DistributedBackendOptions()
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = timeout
    options.group_id = "asyncrl-weights"
    options.global_ranks_in_group = []  # not part of the default group: HCCL would look for its communicator
    return cast("_Backend", create(options, None))


def _verify(group: LibraryGroup, backend: str, rank: int, device: torch.device, deadline: Deadline) -> None:
    """Connect before the first bucket, and check that a byte arrives: a binding without its library may do nothing."""
    sent = torch.full((1,), 0 if rank else PROBE, dtype=torch.uint8, device=device)
    group.broadcast(sent, 0, deadline)
    if sent.item() != PROBE:
        raise RuntimeError(f"{backend} finished a broadcast without sending a byte: check its installation")
