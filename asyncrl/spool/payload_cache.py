"""In-memory cache of the newest payloads, so that a fetch soon after a put reads no disk."""

from collections import deque

COPIED_BYTES = 16 << 10
"""Smaller payloads are copied: libzmq receives small messages into a buffer of 8 KiB that each of them would keep."""
ENTRY_BYTES = 400
"""Memory of an entry beside the payload itself."""


class PayloadCache:
    """
    First-in, first-out cache: payloads are fetched soon after they arrive (reward) or much later (trainer). A payload
    larger than ``max_bytes`` is not cached. Entries count with what Python needs for them.

    A large payload is a view into its message and keeps the whole message in memory. Payloads of one message are added
    and evicted together, so the bytes counted are nearly the bytes held.

    One thread may `add` and `drop_below` while others `get`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._payloads: dict[tuple[int, int], memoryview] = {}
        self._order: deque[tuple[int, int]] = deque()

    def add(self, segment: int, offset: int, payload: memoryview) -> None:
        """Cache ``payload``, which must not change from now on, and evict the oldest payloads over the limit."""
        if payload.nbytes + ENTRY_BYTES > self._max_bytes:
            return
        if payload.nbytes < COPIED_BYTES:
            payload = memoryview(bytes(payload))
        self._payloads[segment, offset] = payload
        self._order.append((segment, offset))
        self._bytes += payload.nbytes + ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._evict_oldest()

    def get(self, segment: int, offset: int) -> memoryview | None:
        return self._payloads.get((segment, offset))

    def drop_below(self, segment: int) -> None:
        """Evict payloads of segments older than ``segment``."""
        while self._order and self._order[0][0] < segment:
            self._evict_oldest()

    def _evict_oldest(self) -> None:
        self._bytes -= self._payloads.pop(self._order.popleft()).nbytes + ENTRY_BYTES
