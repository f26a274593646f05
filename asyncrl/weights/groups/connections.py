"""
TCP connections of one gloo group, found among the descriptors of this process by the addresses its ranks listen on.

    rendezvous ── addresses ─▶ is either end of a descriptor's connection among them? ─▶ shut down

Gloo has no call that ends a broadcast from another thread. A connection that is shut down ends it in every rank of the
group, like the death of a peer: at once, except for a rank in the middle of a message, which learns it from its own
deadline or abort.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

DESCRIPTORS = Path("/dev/fd")
"""Directory of the open descriptors of this process, on Linux and macOS."""


def shut_down(addresses: Collection[bytes]) -> int:
    """
    Shut down every connection of this process that begins or ends at one of the ``addresses``; returns their number.

    Args:
        addresses: Values in which gloo announces where a rank listens: each contains a ``sockaddr``.
    """
    count = 0
    for connection in _connections():
        with connection, suppress(OSError):  # The other end may have closed it meanwhile.
            ends = (_packed(connection.getpeername()), _packed(connection.getsockname()))
            if any(end in address for end in ends for address in addresses):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections() -> Iterator[socket.socket]:
    """Duplicates of all connected TCP sockets."""
    for entry in DESCRIPTORS.iterdir():
        if (found := _duplicate(int(entry.name))) is None:
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(found):
            yield found
        else:
            found.close()


def _duplicate(descriptor: int) -> socket.socket | None:
    """The socket of a descriptor under a number of our own: the number itself may be another file a moment later."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:  # It was closed meanwhile.
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:  # It is no socket.
        os.close(duplicate)
        return None


def _is_connected(found: socket.socket) -> bool:
    """False for a listener: gloo ends the process if that is shut down."""
    with suppress(OSError):
        return bool(found.getpeername())
    return False


def _packed(address: tuple[str, int] | tuple[str, int, int, int]) -> bytes:
    """Port and host as in a ``sockaddr_in`` or ``sockaddr_in6``, without the family."""
    host, port = address[:2]
    if ":" not in host:
        return struct.pack("!H", port) + socket.inet_pton(socket.AF_INET, host)
    return struct.pack("!HI", port, 0) + socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
