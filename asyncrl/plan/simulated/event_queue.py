"""Virtual time: a queue of events, and a clock that jumps from one event to the next."""

import heapq
from collections.abc import Callable
from itertools import count


class EventQueue:
    """Runs callbacks in order of time; at equal times in the order they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._events)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), do))

    def advance(self) -> bool:
        """Run the next event. Returns False if there is none."""
        if not self._events:
            return False
        self.now_s, _, do = heapq.heappop(self._events)
        do()
        return True
