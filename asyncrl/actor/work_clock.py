"""How long an actor has worked, and how long it had nothing to do."""

from collections.abc import Callable


class WorkClock:
    """Running totals of two states. Starts idle."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock()
        self._is_busy = False
        self._busy_s = 0.0
        self._wait_s = 0.0

    def set_busy(self, is_busy: bool) -> None:
        """The state from now on."""
        if is_busy != self._is_busy:
            self._busy_s, self._wait_s = self.totals()
            self._since_s = self._clock()
            self._is_busy = is_busy

    def totals(self) -> tuple[float, float]:
        """Seconds busy, and seconds waiting, up to now."""
        elapsed_s = self._clock() - self._since_s
        if self._is_busy:
            return self._busy_s + elapsed_s, self._wait_s
        return self._busy_s, self._wait_s + elapsed_s
