"""
Activities of each node over time, from times.jsonl: a line a step with the seconds of every activity of every node.

    {"step": 12, "time_s": 123.4, "span_s": 2.1, "nodes": {"rollout-0": {"role": "rollout", "seconds": {...}}}}

The file of a long run on many nodes may have a gigabyte, so it is read in slices, and neighbouring spans are joined
when there are too many: memory is bounded, and what is shown has more spans than a screen has columns.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.records.times import APART, NodeTimes, TimesLine

MAX_SPANS = 1024
SLICE_BYTES = 4 << 20
BUDGET_S = 0.2
"""Seconds that one call reads for."""

Grid = NDArray[np.float32]


DECODER = msgspec.json.Decoder(TimesLine)


class TimeBands:
    """Seconds by span, node and activity; a span ends at ``ends_s`` of the run's clock."""

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self.nodes: list[str] = []
        self.roles: list[str] = []
        self.activities: list[str] = []
        self._max_spans = max_spans
        self._places: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._grid: Grid = np.zeros((0, 0, 0), np.float32)
        self._shares_of_roles: dict[str, dict[str, float]] | None = None
        """None if a span was added since they were computed."""
        self.last: dict[str, NodeTimes] = {}
        """Newest line of each node."""
        self._of_starts: list[Mapping[str, NodeTimes]] = []
        """Nodes of the spans that are no part of the steady run, as in `without_starts`."""
        self._has_step = False
        self._num_added = 0

    @property
    def starts_s(self) -> NDArray[np.float64]:
        return np.array(self._starts)

    @property
    def ends_s(self) -> NDArray[np.float64]:
        return np.array(self._ends)

    @property
    def seconds(self) -> Grid:
        """[spans, nodes, activities]; a view."""
        return self._grid[: len(self._ends), : len(self.nodes), : len(self.activities)]

    def add(self, line: TimesLine) -> None:
        """Append a span; its end is not before that of the span before it, or it is left out."""
        if self._ends and line.time_s < self._ends[-1]:
            return
        if len(self._ends) == self._max_spans:
            self._join()
        row = len(self._ends)
        self.last.update(line.nodes)
        for node, times in line.nodes.items():
            if node not in self._places:
                self._places[node] = len(self.nodes)
                self.nodes.append(node)
                self.roles.append(times.role)
            for activity in times.seconds:
                if activity not in self._kinds:
                    self._kinds[activity] = len(self.activities)
                    self.activities.append(activity)
        self._fit(row + 1)
        for node, times in line.nodes.items():
            place = self._grid[row, self._places[node]]
            for activity, seconds in times.seconds.items():
                place[self._kinds[activity]] = max(seconds, 0.0)
        if line.is_start or not self._has_step:
            self._of_starts.append(line.nodes)
        self._has_step |= line.step >= 0
        self._num_added += 1
        self._starts.append(line.time_s - line.span_s)
        self._ends.append(line.time_s)
        self._shares_of_roles = None

    def _fit(self, num_spans: int) -> None:
        wanted = (num_spans, len(self.nodes), len(self.activities))
        if all(has >= need for has, need in zip(self._grid.shape, wanted, strict=True)):
            return
        shape = [has if has >= need else max(need, 2 * has) for has, need in zip(self._grid.shape, wanted, strict=True)]
        grown = np.zeros((min(shape[0], self._max_spans), shape[1], shape[2]), np.float32)
        a, b, c = self._grid.shape
        grown[:a, :b, :c] = self._grid
        self._grid = grown

    def _join(self) -> None:
        """Join each span with the next."""
        half = self._max_spans // 2
        joined = self._grid[0 : 2 * half : 2] + self._grid[1 : 2 * half : 2]
        self._grid = np.zeros_like(self._grid)
        self._grid[:half] = joined
        self._starts, self._ends = self._starts[0 : 2 * half : 2], self._ends[1 : 2 * half : 2]

    def shares(self, newest: int | None = None) -> NDArray[np.float64]:
        """[nodes, activities] parts of 1 of each node's time, over all spans or the ``newest`` ones."""
        sums = (self.seconds[-newest:] if newest else self.seconds).sum(axis=0, dtype=np.float64)
        total = sums.sum(axis=1, keepdims=True)
        parts: NDArray[np.float64] = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
        return parts

    def by_role(self) -> dict[str, dict[str, float]]:
        """
        Share of the time of a role's nodes by activity, the largest first, in the steady part of the run: without
        starts, with the first step, and without what says nothing of its pace, as in `asyncrl.tools.why`.
        """
        if self._shares_of_roles is None:
            sums = self.seconds.sum(axis=0, dtype=np.float64)
            for node, times in self._apart():
                for activity, seconds in times.seconds.items():
                    sums[self._places[node], self._kinds[activity]] -= max(seconds, 0.0)
            kept = [activity not in APART for activity in self.activities]
            self._shares_of_roles = {}
            for role in dict.fromkeys(self.roles):
                own = sums[[place for place, name in enumerate(self.roles) if name == role]].sum(axis=0) * kept
                total_s, order = float(own.sum()), np.argsort(-own, kind="stable")
                parts = {self.activities[i]: float(own[i]) / total_s for i in order if own[i] > 1e-6 * total_s > 0}
                self._shares_of_roles[role] = parts
        return self._shares_of_roles

    def _apart(self) -> list[tuple[str, NodeTimes]]:
        """Nodes of starts, with their times; none if there is nothing else."""
        has_more = self._num_added > len(self._of_starts)
        return [each for nodes in self._of_starts if has_more for each in nodes.items()]


class TimesFile:
    """times.jsonl, read a slice at a time; ``clock`` gives seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.bands = TimeBands()
        self.is_behind = False
        """True if the last call had no time to read all that was there."""
        self.num_damaged = 0
        """Lines that were left out."""
        self._clock = clock
        self._offset = 0
        self._size = 0

    @property
    def read_share(self) -> float:
        """Part of the file that was read; 1 if there is none."""
        return self._offset / self._size if self._size else 1.0

    def advance(self, budget_s: float = BUDGET_S) -> None:
        """Read on, for about ``budget_s`` seconds."""
        deadline = self._clock() + budget_s
        self.is_behind = False
        try:
            with self.path.open("rb") as file:
                self._size = file.seek(0, 2)
                if self._size < self._offset:  # replaced
                    self.bands, self._offset = TimeBands(), 0
                while self._offset < self._size:
                    file.seek(self._offset)
                    part = file.read(SLICE_BYTES)
                    if not (end := part.rfind(b"\n") + 1):
                        part += file.readline()  # one line larger than a slice
                        if not (end := part.rfind(b"\n") + 1):
                            break  # being written
                    self._take(part[:end].split(b"\n")[:-1])
                    self._offset += end
                    if self._clock() > deadline:
                        self.is_behind = self._offset < self._size
                        break
        except FileNotFoundError:
            self._size = 0

    def _take(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            try:
                self.bands.add(DECODER.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.num_damaged += 1


def bands_of_metrics(metrics: Sequence[Mapping[str, Any]]) -> TimeBands:
    """The trainer's time as metrics.jsonl has it, for a run without times.jsonl; steps may be missing in between."""
    bands, before_s, before = TimeBands(), None, -1
    for line in metrics:
        parts = {"training": "train_s", "waiting for trajectories": "wait_s", "publishing": "publish_s"}
        seconds = {name: line[key] for name, key in parts.items() if isinstance(line.get(key), int | float)}
        if not seconds or not isinstance(end_s := line.get("time_s"), int | float):
            continue
        step = int(line.get("step", 0))
        span_s = sum(seconds.values()) if before_s is None or step > before + 1 else end_s - before_s
        before_s, before = end_s, step
        if (rest := span_s - sum(seconds.values())) > 0:
            seconds["other"] = rest
        bands.add(TimesLine(step, end_s, max(span_s, 0.0), {"trainer": NodeTimes("trainer", seconds)}))
    return bands
