"""Busy and idle time of a role."""

import time
from collections.abc import Callable


class Occupancy:
    """Counts active tasks; its totals of busy and idle seconds add up to the time since construction."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._busy_s = 0.0
        self._wait_s = 0.0
        self.active = 0

    @property
    def busy_s(self) -> float:
        """Seconds with at least one active task."""
        return self._busy_s + (self._clock() - self._since_s if self.active else 0.0)

    @property
    def wait_s(self) -> float:
        """Seconds with no active task."""
        return self._wait_s + (0.0 if self.active else self._clock() - self._since_s)

    def begin(self) -> None:
        """Count one more active task."""
        self._add_elapsed()
        self.active += 1

    def end(self) -> None:
        """Count one active task less."""
        self._add_elapsed()
        self.active -= 1

    def _add_elapsed(self) -> None:
        self._busy_s, self._wait_s = self.busy_s, self.wait_s
        self._since_s = self._clock()
