"""
A process group outside torch's default group, so that engines and sharded trainers can have groups of their own.

    ranks ── rendezvous ─▶ all present, same library ── connect ─▶ one byte broadcast ─▶ Group

Every wait is bounded by a deadline, which the library gets with each call. A shorter wait outside the library would not
be enough: the library's thread would continue, and closing the group would wait for it. While connecting, gloo respects
a deadline poorly, and NCCL and HCCL not at all. Ranks therefore rendezvous first, and only a rank that dies between the
rendezvous and the connection can exceed the deadline.
"""

import hmac
import mmap
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from asyncrl.errors import ConfigError, TransferError
from asyncrl.weights.groups.device import make_current
from asyncrl.weights.groups.network_interface import SHORTEST_S, Deadline, collective_environment, why_unreachable

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


# ── shared memory ──────────────────────────────────────────────────────────────────────────────
# A group of processes of one machine: buckets cross memory that they share, and sockets tell of them.
#
#     rank 0   bucket ─ copy ─▶ slot 0 │ slot 1 ─ copy ─▶ bucket of every other rank
#                  └── a byte on each rank's socket: the slot is full ──▶  │
#                  ◀── a byte back: it is free ────────────────────────────┘
#
# One slot is filled while the other is read. The memory is an anonymous file, whose descriptor travels over the
# sockets: nothing is left of it when the processes end, however they do, and the end of a process ends its socket. The
# sockets are in Linux's abstract namespace, which a container or a network namespace has of its own.

SLOT_BYTES = 8 << 20
"""Size of each of the two slots; a larger bucket crosses in several parts."""
WAIT_S = 0.02
"""Longest wait inside the kernel, after which an abort is noticed."""
PLACE, TOKEN_BYTES = "shared memory", 16
SIGNAL = b"."

Result = TypeVar("Result")


class SharedMemoryGroup:
    """
    A connected group, with the methods of `group.Group`. Not thread-safe, but `close` may be called by any thread.

    Args:
        peers: Sockets of the other ranks at rank 0, and that of rank 0 at the others.
        memory: [2 * SLOT_BYTES] bytes that all ranks map.
    """

    def __init__(self, rank: int, peers: dict[int, socket.socket], memory: mmap.mmap) -> None:
        self._rank = rank
        self._peers = peers
        self._memory: mmap.mmap | None = memory
        both = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots = [both[:SLOT_BYTES], both[SLOT_BYTES:]]
        self._num_parts = 0
        """Parts sent or received so far; part n is in slot n % 2."""

    def broadcast(self, tensor: Tensor, root: int, deadline: Deadline) -> None:
        """
        Copy ``tensor`` of rank 0 to all ranks. Returns at rank 0 when every byte is in a slot.

        Raises:
            RuntimeError: A peer is gone, or the deadline has passed. The group is unusable afterwards.
            ValueError: ``root`` is another rank.
        """
        if root:
            raise ValueError(f"a group of shared memory broadcasts from rank 0, not from rank {root}")
        if self._memory is None:
            raise RuntimeError("the group is closed")
        cross = self._receive if self._rank else self._send
        raw = tensor.view(-1).view(torch.uint8)
        for start in range(0, len(raw), SLOT_BYTES):
            part = raw[start : start + SLOT_BYTES]
            cross(part, self._slots[self._num_parts % 2][: len(part)], deadline)
            self._num_parts += 1

    def close(self) -> None:
        """Close the sockets, which ends the broadcasts of all ranks, and unmap the memory. Idempotent."""
        for peer in self._peers.values():
            peer.close()
        self._memory, self._slots = None, []

    def _send(self, part: Tensor, slot: Tensor, deadline: Deadline) -> None:
        if self._num_parts >= 2:
            for rank, peer in self._peers.items():
                _take_signal(rank, peer, deadline)
        slot.copy_(part)
        for rank, peer in self._peers.items():
            _bounded(rank, peer, deadline, partial(peer.sendall, SIGNAL))

    def _receive(self, part: Tensor, slot: Tensor, deadline: Deadline) -> None:
        ((rank, peer),) = self._peers.items()
        _take_signal(rank, peer, deadline)
        part.copy_(slot)
        _bounded(rank, peer, deadline, partial(peer.sendall, SIGNAL))


def form_shared(store: Store, rank: int, size: int, deadline: Deadline) -> SharedMemoryGroup:
    """
    Share memory with the other ranks, which must be on this machine. Blocks until all ranks do.

    Raises:
        TransferError: A rank is on another machine, or in a container or network namespace of its own.
        RuntimeError: A rank did not connect by the deadline.
    """
    if rank:
        peer, memory = _joined(store, rank, deadline)
        return SharedMemoryGroup(rank, {0: peer}, memory)
    return SharedMemoryGroup(0, *_gathered(store, size, deadline))


def _gathered(store: Store, size: int, deadline: Deadline) -> tuple[dict[int, socket.socket], mmap.mmap]:
    """Rank 0's part: its memory, and a socket to every other rank."""
    token = secrets.token_bytes(TOKEN_BYTES)
    peers: dict[int, socket.socket] = {}
    descriptor = os.memfd_create("asyncrl-group")
    try:
        os.ftruncate(descriptor, 2 * SLOT_BYTES)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(_address(token))
            listener.listen(size)
            store.set(PLACE, token.hex())
            while len(peers) < size - 1:
                peer, _ = _bounded(None, listener, deadline, listener.accept)
                if (rank := _identified(peer, token, deadline)) is None:
                    peer.close()
                    continue
                socket.send_fds(peer, [SIGNAL], [descriptor])
                peers[rank] = peer
        return peers, mmap.mmap(descriptor, 2 * SLOT_BYTES)
    except BaseException:
        for peer in peers.values():
            peer.close()
        raise
    finally:
        os.close(descriptor)


def _joined(store: Store, rank: int, deadline: Deadline) -> tuple[socket.socket, mmap.mmap]:
    """Another rank's part: its socket to rank 0, and rank 0's memory."""
    token = bytes.fromhex(store.get(PLACE).decode())
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            peer.connect(_address(token))
        except ConnectionRefusedError:
            raise TransferError(
                f"rank {rank} shares no memory with rank 0: weights.backend = 'shared' needs all of them on one "
                f"machine, in one network namespace; use 'gloo'"
            ) from None
        peer.sendall(token + rank.to_bytes(4))
        _, descriptors, _, _ = _bounded(0, peer, deadline, partial(socket.recv_fds, peer, 1, 1))
        if not descriptors:
            raise RuntimeError("rank 0 closed the connection while the group was formed")
        try:
            return peer, mmap.mmap(descriptors[0], 2 * SLOT_BYTES)
        finally:
            os.close(descriptors[0])
    except BaseException:
        peer.close()
        raise


def _address(token: bytes) -> str:
    return f"\0asyncrl-{token.hex()}"


def _identified(peer: socket.socket, token: bytes, deadline: Deadline) -> int | None:
    """The rank that connected; None if it does not know the token, as only members can."""
    told = b""
    while len(told) < TOKEN_BYTES + 4:
        received = _bounded(None, peer, deadline, partial(peer.recv, TOKEN_BYTES + 4 - len(told)))
        if not received:
            return None
        told += received
    return int.from_bytes(told[TOKEN_BYTES:]) if hmac.compare_digest(told[:TOKEN_BYTES], token) else None


def _take_signal(rank: int, peer: socket.socket, deadline: Deadline) -> None:
    """Take one byte; not more, because the next one may be there already."""
    if not _bounded(rank, peer, deadline, partial(peer.recv, 1)):
        raise RuntimeError(f"rank {rank} closed its connection: Connection closed by peer")


def _bounded(rank: int | None, peer: socket.socket, deadline: Deadline, call: Callable[[], Result]) -> Result:
    """Result of a call that waits for a peer; raises `RuntimeError` if the peer is gone, or too late."""
    while not deadline.has_passed:
        peer.settimeout(min(WAIT_S, deadline.left_s()))
        try:
            return call()
        except TimeoutError:
            continue
        except OSError as error:
            raise RuntimeError(f"rank {'?' if rank is None else rank} is gone: {error.strerror or error}") from error
    who: Any = "a rank" if rank is None else f"rank {rank}"
    raise RuntimeError(f"timed out: {who} gave no sign within {deadline.seconds:g} s")
