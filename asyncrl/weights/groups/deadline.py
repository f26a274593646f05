"""The instant by which all parts of one transfer must be over."""

import time

SHORTEST_S = 0.001
"""What is asked for once the time is up: collectives take 0 for "no limit"."""


class Deadline:
    """Counts down from the moment it is made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_s

    def left_s(self) -> float:
        """Seconds that may still be waited; never less than `SHORTEST_S`."""
        return max(SHORTEST_S, self.seconds - self.elapsed_s())
