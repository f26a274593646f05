"""
Seconds of a role by what it does.

    sampling     ───────╮        ╭──────        one activity counts at a time: the first of those with an active task
    storing           ──┼──╮     │
    idle                   ╰─────╯
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar

Activity = TypeVar("Activity", bound=str)


class Occupancy(Generic[Activity]):
    """
    Counts active tasks by activity; the seconds of all activities add up to the time since construction.

    Args:
        activities: Activities of the role. An earlier one counts rather than a later one that goes on meanwhile.
    """

    def __init__(self, activities: Sequence[Activity], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._active: dict[Activity, int] = dict.fromkeys(activities, 0)
        self._seconds: defaultdict[Activity | Literal["idle"], float] = defaultdict(float)

    @property
    def current(self) -> Activity | Literal["idle"]:
        """``idle`` without an active task."""
        return next((activity for activity, count in self._active.items() if count), "idle")

    def num_active(self, activity: Activity) -> int:
        """Number of active tasks."""
        return self._active[activity]

    @property
    def seconds(self) -> dict[Activity | Literal["idle"], float]:
        """Seconds by activity up to now."""
        self._add_elapsed()
        return dict(self._seconds)

    def begin(self, activity: Activity) -> None:
        """Count one more active task."""
        self._add_elapsed()
        self._active[activity] += 1

    def end(self, activity: Activity) -> None:
        """Count one active task less."""
        self._add_elapsed()
        self._active[activity] -= 1

    def mark(self, activity: Activity, *, is_active: bool) -> None:
        """Set whether an activity without tasks of its own goes on."""
        self._add_elapsed()
        self._active[activity] = int(is_active)

    @contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        """Count the block as an active task."""
        self.begin(activity)
        try:
            yield
        finally:
            self.end(activity)

    def _add_elapsed(self) -> None:
        now_s = self._clock()
        self._seconds[self.current] += now_s - self._since_s
        self._since_s = now_s
