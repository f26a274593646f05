"""Refused things are all counted, and logged sparingly: whoever sends what is refused cannot fill the log."""

import time
from collections.abc import Callable
from typing import Any

from asyncrl.actor.allowance import Allowance
from asyncrl.log import get_logger

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
