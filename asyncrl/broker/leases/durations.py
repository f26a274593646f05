"""
Durations of work, so that a node which keeps its own far longer than others take is noticed, whatever it says.

Heartbeats tell of progress, but whoever sends them can be wrong. What counts is that work comes back.
"""

import math
from collections import deque

from asyncrl.messages.words import Role

RECENT = 64
"""Pieces of work that the longest is of."""
LEAST_KNOWN = 16
"""Without so many nothing is overdue."""
TIMES = 20.0
"""Work is overdue after so many times the longest duration: the slowest machine of a run is not so much slower."""
LEAST_S = 60.0
"""Nothing is overdue before."""


class Durations:
    """The last pieces of work of each role that came back."""

    def __init__(self) -> None:
        self._recent: dict[Role, deque[float]] = {}

    def took(self, role: Role, seconds: float) -> None:
        if (recent := self._recent.get(role)) is None:
            recent = self._recent[role] = deque(maxlen=RECENT)
        recent.append(seconds)

    def longest_s(self, role: Role) -> float:
        return max(self._recent.get(role, ()), default=0.0)

    def limit_s(self, role: Role) -> float:
        """Seconds after which work of this role is overdue; infinite while too little is known."""
        if len(self._recent.get(role, ())) < LEAST_KNOWN:
            return math.inf
        return max(LEAST_S, TIMES * self.longest_s(role))
