"""
Rendezvous of a weight group over the broker's link.

    group's thread ── set, get ─▶ LinkStore ── StoreSet, StoreGet ─▶ event loop ─▶ broker
          ▲                          │  ▲                                            │
          └────────── value ─────────┘  └───────────── StoreValue ◀──────────────────┘

The usual store is a TCP server that believes whoever connects. This one opens no port: addresses travel on the link
that exists anyway, and only members of the run have one.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from asyncrl.errors import TransferError
from asyncrl.messages import Message, StoreGet, StoreSet, StoreValue
from asyncrl.weights.groups.deadline import Deadline

Send = Callable[[Message], Coroutine[object, object, None]]
"""`Link.send` of the link to the broker."""


class LinkStore(Store):
    """
    What a collective library needs to find its peers, and no more: `set`, `get` and `wait`. The rest of torch's
    interface is left unimplemented, and raises.

    Args:
        group: Keys live under this name; nobody else may use it, ever.
        names: Who the ranks are, for error messages.
        send: Called on ``loop``.
        loop: The loop that owns the link. Not the one this store is called from: its calls block.
        deadline: No call blocks longer.
    """

    def __init__(
        self,
        group: str,
        names: Sequence[str],
        send: Send,
        loop: asyncio.AbstractEventLoop,
        deadline: Deadline,
    ) -> None:
        super().__init__()
        self.group = group
        self._names = names
        self._send = send
        self._loop = loop
        self._deadline = deadline
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._abandoned = ""

    def set(self, key: str, value: str | bytes) -> None:
        """Publish a value to the group."""
        self._post(StoreSet(self.group, key, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, key: str) -> bytes:
        """
        The value of a key, as soon as somebody has set it.

        Raises:
            TransferError: Nobody did before the deadline, or the store was abandoned. Names the missing rank.
        """
        if key not in self._values:
            self._post(StoreGet(self.group, key))
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._abandoned, self._deadline.left_s())
            if key in self._values:
                return self._values[key]
            raise TransferError(
                self._abandoned
                or f"{self._whose(key)} did not come to the rendezvous within {self._deadline.seconds:g} s"
            )

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return once every key is set; raises as `get` does. The deadline decides, not ``timeout``."""
        for key in keys:
            self.get(key)

    def deliver(self, value: StoreValue) -> None:
        """Hand in the broker's answer. From any thread."""
        with self._changed:
            self._values[value.key] = value.value
            self._changed.notify_all()

    def abandon(self, reason: str) -> None:
        """Make every call raise ``reason``, now and later. From any thread."""
        with self._changed:
            self._abandoned = self._abandoned or reason
            self._changed.notify_all()

    def _post(self, message: Message) -> None:
        asyncio.run_coroutine_threadsafe(self._send(message), self._loop).add_done_callback(self._posted)

    def _posted(self, sent: "Future[None]") -> None:
        if sent.cancelled():
            self.abandon("the event loop was stopped during the rendezvous")
        elif error := sent.exception():
            self.abandon(f"the link to the broker failed during the rendezvous: {error}")

    def _whose(self, key: str) -> str:
        """A key ends in the rank that sets it."""
        rank = key.rpartition("/")[2]
        if rank.isdecimal() and int(rank) < len(self._names):
            return f"{self._names[int(rank)]} (rank {rank})"
        return f"key {key!r}"
