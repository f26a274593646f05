"""
Calls that a worker has not answered, and which of them is to blame when the worker hangs or dies.

A worker says when it begins a call. A call that has begun may take ``call_s``; one that waits behind others may wait as
long as the worker gives signs of life. Pure bookkeeping: time is an argument, in seconds of any one clock.
"""

import asyncio
from collections.abc import Iterable

from msgspec import Raw, Struct


class Call(Struct, eq=False):
    episode: str
    """Name of the episode."""
    method: str
    answer: "asyncio.Future[Raw]"
    sent_at: float
    limited_from: float | None
    """Time from which ``call_s`` counts for a call without a limit, once it is cancelled; None: not limited."""
    begun_at: float | None = None

    def deadline(self, heard_at: float, call_s: float) -> float:
        """Time at which the call hangs; ``heard_at`` is that of the worker's last frame."""
        if self.limited_from is None:
            return float("inf")
        since = max(self.sent_at, heard_at) if self.begun_at is None else self.begun_at
        return max(since, self.limited_from) + call_s


def overdue(calls: Iterable[Call], heard_at: float, call_s: float, now: float) -> list[Call]:
    """Calls past their deadline."""
    return [call for call in calls if call.deadline(heard_at, call_s) < now]


def culprits(calls: Iterable[Call], late: Iterable[Call]) -> list[Call]:
    """Calls that a worker hung with: those that began and are late; if none, all that began."""
    return [call for call in late if call.begun_at is not None] or running(calls)


def running(calls: Iterable[Call]) -> list[Call]:
    """Calls that have begun and are not answered."""
    return [call for call in calls if call.begun_at is not None]


class Suspects:
    """
    Episodes that had a call running when a worker died, though nobody hung.

    One alone is to blame. Of several, each may be, so all are continued; one that is there the third time is to blame.
    """

    MOST = 3

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}

    def blame(self, names: Iterable[str]) -> set[str]:
        """Count a death with these episodes running; return those to blame."""
        found = set(names)
        for name in found:
            self._deaths[name] = self._deaths.get(name, 0) + 1
        return {name for name in found if len(found) == 1 or self._deaths[name] >= self.MOST}

    def acquit(self, name: str) -> None:
        """Forget an episode that ended well."""
        self._deaths.pop(name, None)
