"""Deadline of one transfer, shared by all of its parts."""

import time

SHORTEST_S = 0.001
"""Timeout after the deadline has passed: collectives read 0 as "no limit"."""


class Deadline:
    """Counts down ``seconds`` from its construction."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start_s = time.monotonic()
        self._is_expired = False

    @property
    def has_passed(self) -> bool:
        return self._is_expired or self.elapsed_s() >= self.seconds

    def expire(self) -> None:
        """Let the deadline be over now. Thread-safe."""
        self._is_expired = True

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def left_s(self) -> float:
        """Seconds until the deadline; at least `SHORTEST_S`."""
        return SHORTEST_S if self.has_passed else max(SHORTEST_S, self.seconds - self.elapsed_s())
