"""
Rendezvous of a process group over a link (of a transfer group to the broker, of the trainer's ranks to the first one),
and the group's TCP connections.

    group's thread ── set, get ─▶ LinkStore ── StoreSet, StoreGet ─▶ event loop ─▶ broker, or rank 0's hub
          ▲                          │  ▲                                            │
          └────────── value ─────────┘  └───────────── StoreValue ◀──────────────────┘

torch's usual store is a TCP server that trusts every client. This store opens no port: it exchanges addresses over the
existing link, which only nodes of the run have.
"""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed.distributed_c10d import Store

from asyncrl.errors import TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.weights.groups.network_interface import Deadline

Send = Callable[[Message], Coroutine[object, object, None]]
"""`Link.send` of the link to the broker."""


class LinkStore(Store):
    """
    Implements only what collective libraries need to find peers; other methods raise.

    Args:
        group: Namespace of the keys; must never be used twice.
        names: Node name of each rank, for error messages.
        loop: Event loop of the link, on which ``send`` is called. The store's own calls block, so they must come from
            another thread.
        deadline: Limit of every blocking call.
    """

    def __init__(
        self, group: str, names: Sequence[str], send: Send, loop: asyncio.AbstractEventLoop, deadline: Deadline
    ) -> None:
        super().__init__()
        self.group = group
        self._names = names
        self._send = send
        self._loop = loop
        self._deadline = deadline
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._own: list[bytes] = []
        """Values that this rank set."""
        self._abandoned = ""
        self._sending: set[asyncio.Task[object]] = set()
        """Messages on their way; of the event loop alone, which drops what is posted once it has ended."""

    def set(self, key: str, value: str | bytes) -> None:
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._own.append(content)
        self._post(StoreSet(self.group, key, content))

    def values(self) -> list[bytes]:
        """All values that this rank has set or received. Thread-safe."""
        with self._changed:
            return [*self._own, *self._values.values()]

    def get(self, key: str) -> bytes:
        """
        Wait for the value of a key.

        Raises:
            TransferError: No rank set the key by the deadline (names the rank), or the store was abandoned.
        """
        if key not in self._values:
            self._post(StoreGet(self.group, key))
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._abandoned, self._deadline.left_s())
            if key in self._values:
                return self._values[key]
            raise TransferError(
                self._abandoned or f"{self._owner(key)} did not join the rendezvous within {self._deadline.seconds:g} s"
            )

    def check(self, keys: list[str]) -> bool:
        """True if this rank has received every key. Asks nobody: libraries poll for alarms, which no rank sets."""
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until every key is set; raises as `get` does. ``timeout`` is ignored in favour of the deadline."""
        for key in keys:
            self.get(key)

    def deliver(self, value: StoreValue) -> None:
        """Handle the broker's answer. Thread-safe."""
        with self._changed:
            self._values[value.key] = value.value
            self._changed.notify_all()

    def abandon(self, reason: str) -> None:
        """Make all running and later calls raise ``reason``. Thread-safe."""
        with self._changed:
            self._abandoned = self._abandoned or reason
            self._changed.notify_all()

    def _post(self, message: Message) -> None:
        self._loop.call_soon_threadsafe(self._begin, message)

    def _begin(self, message: Message) -> None:
        sending = self._loop.create_task(self._send(message))
        self._sending.add(sending)
        sending.add_done_callback(self._posted)

    def _posted(self, sent: "asyncio.Task[object]") -> None:
        self._sending.discard(sent)
        if sent.cancelled():
            self.abandon("the event loop was stopped during the rendezvous")
        elif error := sent.exception():
            self.abandon(f"the link to the broker failed during the rendezvous: {error}")

    def _owner(self, key: str) -> str:
        """The rank that sets a key, which ends in its number; for error messages."""
        rank = key.rpartition("/")[2]
        if rank.isdecimal() and int(rank) < len(self._names):
            return f"{self._names[int(rank)]} (rank {rank})"
        return f"key {key!r}"


# ── connections ───────────────────────────────────────────────────────────────────────────────
# TCP connections of one gloo group, found among the descriptors of this process by the addresses its ranks listen on.
#
#     rendezvous ── addresses ─▶ is either end of a descriptor's connection among them? ─▶ shut down
#
# Gloo has no call that ends a broadcast from another thread. A connection that is shut down ends it in every rank of
# the group, like the death of a peer: at once, except for a rank in the middle of a message, which learns it from its
# own deadline or abort.

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
