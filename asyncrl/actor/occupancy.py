"""How long a role had something in hand, and how long it had nothing."""

import time
from collections.abc import Callable


class Occupancy:
    """Two running totals that add up to the time since it was made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._busy_s = 0.0
        self._wait_s = 0.0
        self.in_hand = 0

    @property
    def busy_s(self) -> float:
        """Seconds with something in hand."""
        return self._busy_s + (self._clock() - self._since_s if self.in_hand else 0.0)

    @property
    def wait_s(self) -> float:
        """Seconds with nothing in hand."""
        return self._wait_s + (0.0 if self.in_hand else self._clock() - self._since_s)

    def begin(self) -> None:
        """One more is in hand."""
        self._turn()
        self.in_hand += 1

    def end(self) -> None:
        """One fewer is in hand."""
        self._turn()
        self.in_hand -= 1

    def _turn(self) -> None:
        """Book the time since the last change."""
        self._busy_s, self._wait_s = self.busy_s, self.wait_s
        self._since_s = self._clock()
