"""
Connections to a hub whose peers have not proved to know the secret: few bytes are taken of each, and few are kept.

ZeroMQ takes a whole frame of a stranger, up to the size allowed to friends, before it looks at it, and accepts
connections until the process has no descriptor left for its files. It does not tell which connection has finished its
handshake; the kernel's counters do. A hub sends more than `PROVED_BYTES` only to a peer that knows the secret, and such
a peer has sent less than `STRANGER_BYTES` by then.

The guard looks at the descriptors of the process, at a cost that no number of short connections raises. Without
Linux's /proc it sees nothing, and cuts nothing.
"""

import asyncio
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Collection
from pathlib import Path

LOOK_S = 0.1
"""Interval of the looks: the bytes that strangers send meanwhile are the memory that they take."""
PROVED_BYTES = 256
"""More than greeting and WELCOME of CURVE, 234 bytes, which anybody may receive; with READY it is above 290."""
STRANGER_BYTES = 4096
"""More than greeting, HELLO and INITIATE, which have less than 1 kB."""
MAX_STRANGERS = 1024

_DESCRIPTORS = Path("/proc/self/fd")
_ESTABLISHED = 1
_COUNTERS = struct.Struct("=B119xQQ")
"""`tcp_info` of Linux: tcpi_state, tcpi_bytes_acked and tcpi_bytes_received."""


class HandshakeGuard:
    """
    Watches the connections to TCP ports of this process, over IPv4 and IPv6, inside the running loop.

    Beyond `MAX_STRANGERS`, or a quarter of the process's descriptors, the connections that have been without proof for
    longest are cut.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._max_strangers = min(MAX_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._cleared: dict[int, int] = {}
        """Descriptor by inode of each socket that need not be looked at again: a friend's, or none of these ports."""
        self._strangers: dict[int, int] = {}
        """Descriptor by inode of each connection without proof, oldest first."""
        self.num_cut = 0
        """Connections that were cut so far."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if _DESCRIPTORS.is_dir():
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        found = _sockets()
        self._cleared = {inode: fd for inode, fd in self._cleared.items() if found.get(inode) == fd}
        fresh = [inode for inode in found if inode not in self._cleared and inode not in self._strangers]
        strangers = {}
        for inode in [*self._strangers, *fresh]:
            descriptor = found.get(inode)
            if descriptor is None:
                continue
            if _with(descriptor, self._is_stranger):
                strangers[inode] = descriptor
            else:
                self._cleared[inode] = descriptor
        for inode in list(strangers)[: max(len(strangers) - self._max_strangers, 0)]:
            _with(strangers.pop(inode), self._cut)
        self._strangers = strangers

    def _is_stranger(self, connection: socket.socket) -> bool:
        """False for a friend, for a socket that is no connection to these ports, and for one that is cut now."""
        state, sent, received = _counters(connection)
        if connection.getsockname()[1] not in self._ports or state != _ESTABLISHED or sent > PROVED_BYTES:
            return False
        return received <= STRANGER_BYTES or self._cut(connection)

    def _cut(self, connection: socket.socket) -> bool:
        self.num_cut += 1
        return _end(connection)


def shut_down(descriptor: int) -> None:
    """End the connection with this descriptor, if it is one."""
    _with(descriptor, _end)


def _end(connection: socket.socket) -> bool:
    connection.shutdown(socket.SHUT_RDWR)  # ZeroMQ reads the end of the connection, and closes it.
    return False


def _sockets() -> dict[int, int]:
    """Descriptor by inode of each socket of this process."""
    found = {}
    for descriptor in map(int, os.listdir(_DESCRIPTORS)):  # noqa: PTH208  ten times a second, of up to thousands
        try:
            status = os.fstat(descriptor)
        except OSError:  # closed since
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = descriptor
    return found


def _with(descriptor: int, act: Callable[[socket.socket], bool]) -> bool:
    """
    Call ``act`` with the socket; False if it is no TCP socket any more.

    The descriptor belongs to ZeroMQ's thread, which may close it at any time. It is then another file, or another
    connection to which the same rules apply.
    """
    try:
        # The family only says how long an address may be: IPv6's is long enough for both.
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=descriptor)
    except OSError:
        return False
    try:
        return act(connection)
    except OSError:
        return False
    finally:
        connection.detach()


def _counters(connection: socket.socket) -> tuple[int, int, int]:
    """
    State of a connection, bytes that the peer has acknowledged, and bytes received from it.

    Raises:
        OSError: Not a TCP socket, or the kernel does not count.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
    if len(info) < _COUNTERS.size:
        raise OSError("the kernel does not count the bytes of a connection")
    state, sent, received = _COUNTERS.unpack(info)
    return state, sent, received
