"""
A group of processes of one machine: buckets cross memory that they share, and sockets tell of them.

    rank 0   bucket ─ copy ─▶ slot 0 │ slot 1 ─ copy ─▶ bucket of every other rank
                 └── a byte on each rank's socket: the slot is full ──▶  │
                 ◀── a byte back: it is free ────────────────────────────┘

One slot is filled while the other is read. The memory is an anonymous file, whose descriptor travels over the sockets:
nothing is left of it when the processes end, however they do, and the end of a process ends its socket. The sockets are
in Linux's abstract namespace, which a container or a network namespace has of its own.
"""

import hmac
import mmap
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from asyncrl.errors import TransferError
from asyncrl.weights.groups.network_interface import Deadline

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
