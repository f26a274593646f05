"""
One direction of a slow, lossy line: a rate limit with a bounded queue, then a constant delay.

    push ─▶ [lost?] ─▶ [queue full?] ─▶ transmitted at rate_bits_s ─▶ delay_s ─▶ pop

No sockets and no clock: frames and times in, frames out. `tests.cluster.wire` does the I/O.
"""

import random
from collections import deque

from msgspec import Struct


class Conditions(Struct, frozen=True, kw_only=True):
    """Quality of a line, the same in both directions."""

    delay_s: float = 0.0
    """Time from the last bit sent to its arrival, one way: the round trip takes twice as long."""
    loss: float = 0.0
    """Share of frames that vanish, 0 to 1."""
    rate_bits_s: float = 1e9
    queue_bytes: int = 1_000_000
    """Frames that would wait behind more bytes than this are dropped, as by a router."""


class Line:
    """
    One direction of a line.

    Args:
        seed: Decides which frames are lost.
    """

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self._conditions = conditions
        self._random = random.Random(seed)
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._free_s = 0.0
        """When the last bit of the queue has been transmitted."""
        self.lost = 0
        self.overflowed = 0
        self.carried = 0

    def push(self, frame: bytes, now_s: float) -> None:
        """Take a frame that enters the line."""
        conditions = self._conditions
        if self._random.random() < conditions.loss:
            self.lost += 1
            return
        begins_s = max(now_s, self._free_s)
        if (begins_s - now_s) * conditions.rate_bits_s > 8 * conditions.queue_bytes:
            self.overflowed += 1
            return
        self._free_s = begins_s + 8 * len(frame) / conditions.rate_bits_s
        self._under_way.append((self._free_s + conditions.delay_s, frame))

    def pop(self, now_s: float) -> list[bytes]:
        """Frames that have arrived by now, in the order in which they were sent."""
        arrived = []
        while self._under_way and self._under_way[0][0] <= now_s:
            arrived.append(self._under_way.popleft()[1])
        self.carried += len(arrived)
        return arrived

    @property
    def next_s(self) -> float | None:
        """Time of the next arrival; None while the line is empty."""
        return self._under_way[0][0] if self._under_way else None
