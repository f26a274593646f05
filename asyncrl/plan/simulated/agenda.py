"""What happens when, on a clock that jumps from one event to the next."""

import heapq
from collections.abc import Callable
from itertools import count


class Agenda:
    """Events in order of time; those of one moment in the order they were set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._events)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """``do`` that many seconds from now."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), do))

    def advance(self) -> bool:
        """Go to the next event and let it happen. False if there is none."""
        if not self._events:
            return False
        self.now_s, _, do = heapq.heappop(self._events)
        do()
        return True
