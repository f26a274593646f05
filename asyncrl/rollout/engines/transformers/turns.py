"""
Turns of the event loop between two decode steps.

A request takes several turns of the loop until it reaches the engine: a socket is read, a task starts, another wakes
up. With a single turn between two steps, each of these would wait for a step.
"""

import asyncio
import time
from collections.abc import Callable

QUIET = 2
"""Turns in a row without other work after which the loop has nothing to do; a wake-up alone may look like none."""
MOST = 32
"""Turns after which the next step runs in any case."""
NOISE = 3.0
"""A turn this many times longer than the shortest one had other work."""
FORGET = 1.001
"""Growth of the shortest duration per turn, so that it follows the machine's speed."""


class Turns:
    """Gives the event loop turns until it has no other work."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._shortest_s = float("inf")

    async def give(self) -> int:
        """Let other tasks run. Returns the number of turns."""
        num_quiet = 0
        for turn in range(1, MOST + 1):
            start_s = self._clock()
            await asyncio.sleep(0)
            seconds = self._clock() - start_s
            self._shortest_s = min(self._shortest_s * FORGET, seconds)
            num_quiet = num_quiet + 1 if seconds <= NOISE * self._shortest_s else 0
            if num_quiet == QUIET:
                return turn
        return MOST
