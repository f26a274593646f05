"""
A run that is read on for as long as it goes on, in bounded memory: its steps and its events.

    a line of metrics.jsonl ─▶ StepHistory ─┬─▶ sums     of all steps: pace, means, times
                                            └─▶ lines    every step, or every 2nd, 4th, ... but for the first and newest
    an event ─▶ EventHistory ─▶ events      every one, but of those that each step brings only some old ones

Both depend on what was added and its order alone: whoever begins to read later gets the same.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from asyncrl.records.events import ENDED_BY, ROUTINE
from asyncrl.records.measures import RECENT, Measures, Sums, finite, measures

MOST_LINES = 2048
"""Steps that are kept: more than a chart has points on a screen."""
ENDS = 2 * RECENT
"""Steps at both ends that are kept in any case: means over some of them are shown."""
MOST_EVENTS = 1000
"""Events that each step brings which are kept."""
WEIGHTS = {"logprob_gap_mean": "logprob_gap_tokens"}
"""Metrics whose mean over steps is weighted by another."""


class StepHistory:
    """
    The steps of a run, in order.

    Args:
        lines: To begin with.
        most: Lines that are kept; None keeps all.
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]] = (), *, most: int | None = None) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.names: dict[str, None] = {}
        """Metrics of any step, in the order of their first appearance."""
        self.num_steps = 0
        self.stride = 1
        """Every so many steps one is kept, between the ends."""
        self._places: list[int] = []
        """Number of each kept line among all."""
        self._most = most
        self._sums = Sums()
        self._totals: dict[str, list[float]] = {}
        """Weight, weighted sum, number and sum of each metric's values."""
        self._times_s = array("d")
        for line in lines:
            self.add(line)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepHistory) and (self.lines, self.num_steps) == (other.lines, other.num_steps)

    __hash__ = None  # type: ignore[assignment]

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the step that follows."""
        self._sums.add(line)
        for name, value in line.items():
            self.names[name] = None
            if (found := finite(value)) is None:
                continue
            total = self._totals.setdefault(name, [0.0, 0.0, 0.0, 0.0])
            if (weight := finite(line.get(WEIGHTS.get(name, "")))) is not None:
                total[0] += weight
                total[1] += weight * found
            total[2] += 1
            total[3] += found
        if (time_s := finite(line.get("time_s"))) is not None:
            self._times_s.append(time_s)
        self.lines.append(line)
        self._places.append(self.num_steps)
        self.num_steps += 1
        if self._most and len(self.lines) > self._most:
            self._thin(self._most)

    def _thin(self, most: int) -> None:
        while self.num_steps > self.stride * most // 2:
            self.stride *= 2
        ends = range(ENDS, self.num_steps - ENDS)
        kept = [i for i, place in enumerate(self._places) if place not in ends or place % self.stride == 0]
        self.lines, self._places = [self.lines[i] for i in kept], [self._places[i] for i in kept]

    def measures(self, newest: int = 0) -> Measures:
        """Pace and staleness of all steps, or of the ``newest`` ones, at most `ENDS`."""
        return measures(self.lines, newest) if newest else self._sums.measures

    def mean(self, name: str) -> float | None:
        """Mean of a metric over all steps, by its weight if it has one; None if it was not recorded."""
        weight, weighted, number, total = self._totals.get(name, (0.0, 0.0, 0.0, 0.0))
        if weight > 0:
            return weighted / weight
        return total / number if number else None

    def steps_at(self, time_s: float) -> int:
        """Steps done by then, in seconds since the run's start."""
        return bisect_right(self._times_s, time_s)


class EventHistory:
    """
    The events of a run, in order.

    Of the kinds that every step brings, the newest ``most`` to twice as many are kept, and each that may have ended
    something: the first of its kind after an event that ends by others.
    """

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_whole = True
        """Nothing was left out."""
        self._most = most
        self._spare: list[bool] = []
        self._seen: set[str] = set()

    def add(self, event: dict[str, Any]) -> None:
        kind = str(event.get("event"))
        if kind in ENDED_BY:
            self._seen.clear()
        is_often = kind in ROUTINE and not kind.startswith("node.")
        self.events.append(event)
        self._spare.append(is_often and kind in self._seen)
        self._seen.add(kind)
        if self._spare[-1] and self._spare.count(True) > 2 * self._most:
            self._leave_out()

    def _leave_out(self) -> None:
        num_old = self._spare.count(True) - self._most
        kept = []
        for i, is_spare in enumerate(self._spare):
            if is_spare and num_old:
                num_old -= 1
            else:
                kept.append(i)
        self.events, self._spare = [self.events[i] for i in kept], [self._spare[i] for i in kept]
        self.is_whole = False
