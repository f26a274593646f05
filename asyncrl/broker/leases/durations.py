"""
Durations of work, so that a node which keeps its own far longer than others need is noticed, whatever it says.

Heartbeats tell of progress, but whoever sends them can be wrong. What counts is that work comes back. Lengths of
completions have long tails, so they are judged by the token: no honest one takes longer than the longest there may be,
at the slowest pace of late.
"""

import math
from collections import deque

from asyncrl.messages.words import Role

RECENT = 64
"""Reports of work that the slowest is of."""
LEAST_KNOWN = 16
"""With fewer the limit is as many times longer as there are fewer: the slowest is still to come."""
TIMES: dict[Role, float] = {"rollout": 3.0, "reward": 20.0}
"""Work is overdue after so many times the slowest pace. Verdicts on the same data differ far more than tokens."""
LEAST_S: dict[Role, float] = {"rollout": 60.0, "reward": 5.0}
"""Nothing is overdue before. A verdict has a time limit of its own."""
LEAST_IDLE_S = 5.0
"""The same for a rollout whose beats have not said for as long that it does anything."""
UNKNOWN_S = 60.0
"""The same for it, and for reward nodes, while nothing has come back yet from anybody."""


class Durations:
    """The last pieces of work of each role that came back."""

    def __init__(self) -> None:
        self._recent: dict[Role, deque[float]] = {}
        """Seconds for each unit, which is a token or a verdict."""

    def took(self, role: Role, unit_s: float) -> None:
        """Pieces of work came back together, of which the slowest took so many seconds for each unit."""
        if (recent := self._recent.get(role)) is None:
            recent = self._recent[role] = deque(maxlen=RECENT)
        recent.append(unit_s)

    def slowest_s(self, role: Role) -> float:
        """Seconds for each unit of the slowest of the last pieces."""
        return max(self._recent.get(role, ()), default=0.0)

    def limit_s(self, role: Role, most_units: int = 1, least_s: float = 0.0, *, is_idle: bool = False) -> float:
        """
        Seconds after which work of this role is overdue.

        Infinite for a rollout that says it works while no completion has come back yet: the first may take long.
        """
        if not (known := len(self._recent.get(role, ()))):
            return max(UNKNOWN_S, least_s) if is_idle or role == "reward" else math.inf
        times = TIMES[role] * max(1.0, LEAST_KNOWN / known)
        least_s = max(LEAST_IDLE_S if is_idle else LEAST_S[role], least_s)
        return max(least_s, times * self.slowest_s(role) * most_units)
