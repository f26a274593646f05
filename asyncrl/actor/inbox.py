"""Received bytes, bounded: messages that wait for their actor, and messages that have arrived in part."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from asyncrl.errors import LinkError

T = TypeVar("T")

ITEM_OVERHEAD_BYTES = 512
"""Added to the size of each item: a decoded message takes far more memory than its few bytes on the wire."""
TURN_S = 0.001
"""Longest time a consumer runs without yielding: one that always finds a message would otherwise block the loop."""


class Inbox(Generic[T]):
    """
    A queue with one consumer. After `fail`, queued items are returned first, then the error is raised.

    Args:
        max_bytes: `is_full` is True from this size on; the owner of the socket then stops reading it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._error: LinkError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._turn_ends_s = 0.0

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._max_bytes

    def put(self, item: T, num_bytes: int) -> None:
        self._items.append((item, num_bytes + ITEM_OVERHEAD_BYTES))
        self._bytes += num_bytes + ITEM_OVERHEAD_BYTES
        self._wake()

    def fail(self, error: LinkError) -> None:
        """End the queue with ``error``; the first error stays."""
        self._error = self._error or error
        self._wake()

    async def get(self) -> T:
        """
        Return the next item.

        Raises:
            LinkError: The error given to `fail`, once the queue is empty.
        """
        loop = asyncio.get_running_loop()
        if self._items and loop.time() >= self._turn_ends_s:
            await asyncio.sleep(0)
            self._turn_ends_s = loop.time() + TURN_S
        while not self._items:
            if self._error is not None:
                raise self._error
            self._waiter = loop.create_future()
            await self._waiter
            self._turn_ends_s = loop.time() + TURN_S
        item, num_bytes = self._items.popleft()
        self._bytes -= num_bytes
        return item

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Unfinished:
    """
    Bytes of messages that have arrived in part, by peer, bounded for all peers together.

    Beyond the bound the peer that has been silent for longest gives way, so that messages nobody finishes cannot keep
    out others.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes: dict[str, int] = {}
        """Bytes by peer; the one that has been silent for longest is the first."""
        self._sum = 0

    def note(self, peer: str, num_bytes: int) -> list[str]:
        """Set the bytes of a peer that has just sent a part. Returns the peers to drop, which count no more."""
        self._sum += num_bytes - self._bytes.pop(peer, 0)
        if num_bytes:
            self._bytes[peer] = num_bytes
        dropped = []
        while self._sum > self._max_bytes:
            silent = next(iter(self._bytes))
            self._sum -= self._bytes.pop(silent)
            dropped.append(silent)
        return dropped
