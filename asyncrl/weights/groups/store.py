"""
Rendezvous of a process group over a link: of a transfer group to the broker, of the trainer's ranks to the first one.

    group's thread ── set, get ─▶ LinkStore ── StoreSet, StoreGet ─▶ event loop ─▶ broker, or rank 0's hub
          ▲                          │  ▲                                            │
          └────────── value ─────────┘  └───────────── StoreValue ◀──────────────────┘

torch's usual store is a TCP server that trusts every client. This store opens no port: it exchanges addresses over the
existing link, which only nodes of the run have.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from asyncrl.actor.message import Message
from asyncrl.errors import TransferError
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.weights.groups.deadline import Deadline

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
