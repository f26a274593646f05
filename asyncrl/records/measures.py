"""
Measures of a run's pace, over a span of steps that is always said: one definition for every place that shows one.

    metrics.jsonl ─▶ `Sums` ─▶ `Measures`      of all steps: summary.json, report, `why`, the dashboard's notes
                                               of the last `RECENT`: screen, `status`, metrics, trackers, dashboard

    tokens / s      trained tokens / seconds of the span         seconds: from the end of the step before to that of
    step time       seconds of the span / steps                           the last, by the broker's clock, without those
    waiting         seconds waited / seconds of the span                  that tell nothing of the pace (`apart_s`): a
                                                                          pause, and the loading before a first step
    staleness       mean over steps of each step's mean over trajectories; and the highest of all

Held-out accuracy has no span: it is that of the last evaluation (`asyncrl.records.run_record.accuracies`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from asyncrl.records.formatting import counted

RECENT = 10
"""Steps of a measure of now: a single step says little, as its batch may have been complete before it began."""
RECENTLY = f"last {RECENT} steps"
"""Name of their span in a run that has as many."""
TRAINER_S = ("wait_s", "wait_trainer")
ROLLOUT_S = ("wait_rollout_s", "wait_rollout")
"""Metrics of a step: seconds waited, and in lines without them their share of ``step_s``."""

IN_LINES = {
    "tokens_per_s": "tokens_per_s",
    "step_recent_s": "step_s",
    "wait_trainer": "wait_trainer",
    "wait_rollout": "wait_rollout",
}
"""Name in metrics.jsonl of each measure that a line has of the last steps; its ``step_s`` is of its own step."""


class Measures(Struct, frozen=True, kw_only=True):
    """Measures of consecutive steps; None where the steps did not record what it takes."""

    steps: int
    seconds: float
    tokens: int
    tokens_per_s: float | None
    step_s: float | None
    """Seconds of a step, mean."""
    wait_trainer: float | None
    """Part of 1 of the time in which the trainer waited for a batch."""
    wait_rollout: float | None
    """Part of 1 of the time in which rollouts had nothing to sample, mean over them."""
    staleness_mean: float | None
    """Policy versions."""
    staleness_max: int

    def as_metrics(self) -> dict[str, float]:
        """The measures that the line of a step has, of the last steps, by their names there."""
        found = {name: getattr(self, field) for name, field in IN_LINES.items()}
        return {name: value for name, value in found.items() if value is not None}


class Sums:
    """
    Adds up lines of metrics.jsonl, in order.

    Args:
        before: Line of the step before the first one; without it the first one has the seconds that it names.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        self.steps = 0
        self.tokens = 0
        self.seconds = 0.0
        self.staleness_max = 0
        self._staleness = 0.0
        self._num_stale = 0
        self._waited = {TRAINER_S: [0.0, 0.0], ROLLOUT_S: [0.0, 0.0]}
        """Seconds waited, and seconds of the steps that tell."""
        self._end_s = number(before or {}, "time_s")

    def add(self, line: Mapping[str, Any]) -> None:
        lasts_s = self._lasts_s(line)
        self._end_s = number(line, "time_s") or self._end_s
        self.steps += 1
        self.seconds += lasts_s
        self.tokens += int(number(line, "tokens") or 0)
        self.staleness_max = max(self.staleness_max, int(number(line, "staleness_max") or 0))
        if (staleness := number(line, "staleness_mean")) is not None:
            self._staleness += staleness
            self._num_stale += 1
        for keys, sums in self._waited.items():
            if (waited_s := _waited_s(line, *keys)) is not None:
                sums[0] += min(waited_s, lasts_s)
                sums[1] += lasts_s

    @property
    def measures(self) -> Measures:
        return Measures(
            steps=self.steps,
            seconds=self.seconds,
            tokens=self.tokens,
            tokens_per_s=_ratio(self.tokens, self.seconds),
            step_s=_ratio(self.seconds, self.steps) or None,
            wait_trainer=_ratio(*self._waited[TRAINER_S]),
            wait_rollout=_ratio(*self._waited[ROLLOUT_S]),
            staleness_mean=_ratio(self._staleness, self._num_stale),
            staleness_max=self.staleness_max,
        )

    def _lasts_s(self, line: Mapping[str, Any]) -> float:
        """Seconds of the step; 0 if nothing tells."""
        end_s = number(line, "time_s")
        if end_s is not None and self._end_s is not None:
            return max(end_s - self._end_s - (number(line, "apart_s") or 0.0), 0.0)
        return number(line, "step_s") or 0.0


def measures(lines: Sequence[Mapping[str, Any]], newest: int = 0) -> Measures:
    """Measures of all steps of metrics.jsonl, or of the ``newest`` ones."""
    first = max(len(lines) - newest, 0) if newest else 0
    sums = Sums(lines[first - 1] if first else None)
    for line in lines[first:]:
        sums.add(line)
    return sums.measures


class Ends(Struct, frozen=True):
    """Means of a metric over as many of the first steps as of the last, which share none."""

    first: float
    last: float
    span: int
    """Number of steps of each mean; 0 if there is only one step, which is both."""

    def told(self, which: Literal["first", "last"]) -> str:
        """Name of the span of a mean: ``last 10 steps``, ``first step``."""
        if not self.span:
            return "the only step"
        return f"{which} step" if self.span == 1 else f"{which} {self.span} steps"


def ends_of(values: Sequence[float]) -> Ends | None:
    """
    The first and last `RECENT` values of a metric, mean; of fewer than twice as many, the first and the last half.

    None without a value.
    """
    if not values:
        return None
    span = min(RECENT, len(values) // 2)
    first, last = (values[:span], values[-span:]) if span else (values, values)
    return Ends(sum(first) / len(first), sum(last) / len(last), span)


def recently(num_steps: int) -> str:
    """Name of the span of the last steps, when there are ``num_steps`` so far."""
    return f"last {counted(min(num_steps, RECENT), 'step')}"


def number(line: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a line; None if it has none."""
    return finite(line.get(key))


def finite(value: Any) -> float | None:
    """``value`` if it is a finite number, else None. NaN is recorded as null."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, int | float)):
        return None
    if not math.isfinite(value):
        return None
    return value


def _waited_s(line: Mapping[str, Any], seconds: str, share: str) -> float | None:
    if (waited_s := number(line, seconds)) is not None:
        return waited_s
    part, lasts_s = number(line, share), number(line, "step_s")
    return None if part is None or lasts_s is None else part * lasts_s


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
