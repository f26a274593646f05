"""What happened in one schedule, a line each, for a person who replays it."""

import sys
from collections.abc import Callable
from typing import Any

from tests.simulation.virtual_time import PROCESS


class Trace:
    """
    Says what happens while it happens, or nothing at all.

    Args:
        time_s: The virtual clock.
        is_on: False costs next to nothing.
    """

    def __init__(self, time_s: Callable[[], float], *, is_on: bool) -> None:
        self._time_s = time_s
        self.is_on = is_on

    def say(self, what: str, who: str = "") -> None:
        """One line. ``who`` is the process that is running, unless told."""
        if self.is_on:
            process = PROCESS.get(None)
            who = who or (process.name if process else "—")
            sys.stdout.write(f"{self._time_s():9.3f}  {who:<12} {what[:200]}\n")

    def log(self, _logger: object, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
        """A structlog processor: the product's own log lines."""
        event = fields.pop("event")
        self.say(f"{event}  " + " ".join(f"{key}={value}" for key, value in fields.items()))
        return {"event": event}
