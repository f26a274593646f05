"""Deadline of one transfer, shared by all of its parts."""

import time

SHORTEST_S = 0.001
"""Timeout after the deadline has passed: collectives read 0 as "no limit"."""


class Deadline:
    """Counts down ``seconds`` from its construction."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start_s = time.monotonic()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def left_s(self) -> float:
        """Seconds until the deadline; at least `SHORTEST_S`."""
        return max(SHORTEST_S, self.seconds - self.elapsed_s())
