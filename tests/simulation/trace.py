"""Prints the events of a schedule, one per line, when a seed is replayed."""

import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from tests.simulation.virtual_time import PROCESS


class Trace:
    """
    Prints events as they happen, or nothing.

    Args:
        time_s: The virtual clock.
        is_on: False prints nothing, at almost no cost.
    """

    def __init__(self, time_s: Callable[[], float], *, is_on: bool) -> None:
        self._time_s = time_s
        self.is_on = is_on

    def say(self, what: str, who: str = "") -> None:
        """Print one line. ``who`` defaults to the running process."""
        if self.is_on:
            process = PROCESS.get(None)
            who = who or (process.name if process else "—")
            sys.stdout.write(f"{self._time_s():9.3f}  {who:<12} {what[:200]}\n")

    def log(self, _logger: object, _method: str, fields: MutableMapping[str, Any]) -> dict[str, Any]:
        """A structlog processor that prints log lines of the tested code."""
        event = fields.pop("event")
        self.say(f"{event}  " + " ".join(f"{key}={value}" for key, value in fields.items()))
        return {"event": event}
