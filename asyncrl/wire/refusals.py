"""
Allowances: how often somebody may do something, by key (a token bucket for each).

    take ─▶ True, one less ─▶ ... ─▶ none left ─▶ False
     ▲                                  │
     └── per_s a second, up to burst ───┘

Pure: the time is an argument.
"""

import time
from collections.abc import Callable
from typing import Any

from asyncrl.log import get_logger


class Allowance:
    """
    Counts what each key takes. In T seconds a key gets at most ``burst + per_s * T``.

    Args:
        per_s: What a key may take a second for ever.
        burst: What it may take at once.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self.per_s = per_s
        self._burst = burst
        self._left: dict[str, float] = {}
        self._filled_s: dict[str, float] = {}

    def take(self, key: str, now_s: float) -> bool:
        """Take one; False if none is left at ``now_s`` seconds of any clock that does not go back."""
        left = self._left.get(key, 0.0)
        if left < 1:  # Filled only when it is empty: this is asked for every frame.
            filled_s = self._filled_s.get(key)
            fresh = self._burst if filled_s is None else (now_s - filled_s) * self.per_s
            left = min(left + fresh, self._burst)
            self._filled_s[key] = now_s
        self._left[key] = left - (left >= 1)
        return left >= 1


# ── refusals ──────────────────────────────────────────────────────────────────────────────────
# Refused things are all counted, and logged sparingly: whoever sends what is refused cannot fill the log.

log = get_logger()

LINES_PER_S, BURST_LINES = 1, 100


class Refusals:
    """
    Refusals of one kind.

    Args:
        event: Name of their warnings, whose ``num_refused`` counts those without a warning too.
        clock: Seconds.
    """

    def __init__(self, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._clock = clock
        self._lines = Allowance(LINES_PER_S, BURST_LINES)
        self.num = 0

    def count(self, **fields: Any) -> None:
        """Count one, and log it with ``fields`` unless there were many just before."""
        self.num += 1
        if self._lines.take(self._event, self._clock()):
            log.warning(self._event, **fields, num_refused=self.num)
