"""
The number of decode steps that an engine takes, from when its completions begin and end.

    running        ▁▂▂▂▂▃▃▁▁      a completion of k tokens that runs from t0 to t1 takes k of the engine's steps there;
    1 / running    █▄▄▄▄▃▃██      of each step it is one of `running`, so it counts as k times the mean of 1 / running

Summed over completions that is the number of steps: with the tokens and the seconds of sampling it tells how the time
of a step grows with the completions in it, which no engine has to report.
"""

from collections.abc import Callable
from typing import NamedTuple


class Began(NamedTuple):
    at_s: float
    integral_s: float
    """Integral over time of 1 / running."""


class DecodeSteps:
    """Counts the steps of one engine; ``clock`` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running = 0
        self._integral_s = 0.0
        self._until_s = clock()
        self.number = 0.0
        """Steps so far, counted when a completion ends."""

    def begin(self) -> Began:
        """A completion begins; the return value is for `end`."""
        self._advance()
        self._running += 1
        return Began(self._until_s, self._integral_s)

    def end(self, began: Began, num_tokens: int) -> None:
        """It ends, with so many tokens sampled since it began; 0 if nobody knows."""
        self._advance()
        self._running -= 1
        seconds = self._until_s - began.at_s
        if seconds > 0:
            self.number += num_tokens * (self._integral_s - began.integral_s) / seconds

    def _advance(self) -> None:
        now_s = self._clock()
        if self._running:
            self._integral_s += (now_s - self._until_s) / self._running
        self._until_s = now_s
