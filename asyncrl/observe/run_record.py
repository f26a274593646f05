"""
A run as its directory tells it, whole or not: finished, failed, still going, or killed.

Nothing that is missing or damaged is an error here. It is a note, and the rest is read all the same: a report is
wanted most when something went wrong.
"""

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.observe.report.axes import Point
from asyncrl.observe.run_directory import RunDirectory, RunSummary

Status = Literal["finished", "failed", "open"]
"""``open``: no word of its end yet. It may still be going, or have been killed."""


NOT_MEASURED = ("policy_version", "accuracy", "num_prompts", "time_s")
"""Fields of an evaluation's event that are no further metrics of it."""


class HeldOut(Struct, frozen=True):
    """One evaluation."""

    policy_version: int
    accuracy: float
    num_prompts: int
    time_s: float | None
    """Since the run's start."""
    metrics: dict[str, float] = {}
    """Whatever else was measured, such as ``pass@4``; what is not a number is left out."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """What is known about a run."""

    name: str
    config: dict[str, Any]
    """Every value under its full name, as ``schedule.staleness``."""
    summary: RunSummary | None
    metrics: list[dict[str, Any]]
    """One a step, in order."""
    events: list[dict[str, Any]]
    notes: list[str]
    """What could not be read, one sentence each."""

    @property
    def status(self) -> Status:
        """How it ended."""
        if self.summary:
            return self.summary.status
        ended = self._ended()
        return "open" if ended is None else "failed" if ended.get("status") == "failed" else "finished"

    @property
    def cause(self) -> str:
        """Why it failed, or empty."""
        if self.summary:
            return self.summary.cause
        return str((self._ended() or {}).get("cause") or "")

    @property
    def wall_s(self) -> float | None:
        """Seconds it took, or has taken at its last step."""
        if self.summary:
            return self.summary.wall_s
        times = self.curve("time_s")
        return times[-1][1] if times else None

    @property
    def names(self) -> list[str]:
        """Of all metrics that any step has."""
        return list(dict.fromkeys(name for line in self.metrics for name in line))

    def curve(self, key: str, x_key: str = "step") -> list[Point]:
        """``(x, value)`` of every step that recorded a finite number under both keys."""
        points = ((_number(line.get(x_key)), _number(line.get(key))) for line in self.metrics)
        return [(x, y) for x, y in points if x is not None and y is not None]

    def mean(self, key: str, weight: str = "") -> float | None:
        """Mean over steps, each as heavy as its value of ``weight`` says; None if nothing was recorded."""
        pairs = self.curve(key, weight or "step")
        heavy = sum(x for x, _ in pairs) if weight else 0.0
        if heavy > 0:
            return sum(x * y for x, y in pairs) / heavy
        values = [y for _, y in self.curve(key)]
        return sum(values) / len(values) if values else None

    def total(self, key: str) -> float | None:
        """Sum over steps; None if nothing was recorded."""
        values = [y for _, y in self.curve(key)]
        return sum(values) if values else None

    def held_out(self) -> list[HeldOut]:
        """Every evaluation, in order of versions; of a version evaluated again, the later one."""
        found: dict[int, HeldOut] = {}
        for event in self.events:
            version, accuracy = event.get("policy_version"), _number(event.get("accuracy"))
            if event.get("event") == "eval.finished" and isinstance(version, int) and accuracy is not None:
                prompts = int(_number(event.get("num_prompts")) or 0)
                numbers = {key: number for key in event if (number := _number(event[key])) is not None}
                metrics = {key: number for key, number in numbers.items() if key not in NOT_MEASURED}
                found[version] = HeldOut(version, accuracy, prompts, numbers.get("time_s"), metrics)
        return [found[version] for version in sorted(found)]

    def _ended(self) -> dict[str, Any] | None:
        """The event of its end. A run that was resumed after it is open again."""
        ends = ("run.started", "run.resumed", "run.finished")
        last = [event for event in self.events if event.get("event") in ends][-1:]
        return last[0] if last and last[0]["event"] == "run.finished" else None


def read_run(path: Path) -> RunRecord:
    """
    Everything a run directory tells.

    Raises:
        ConfigError: There is no such directory.
    """
    if not path.is_dir():
        raise ConfigError(f"no such run: {path} is not a directory")
    directory, notes = RunDirectory(path), list[str]()
    return RunRecord(
        name=path.resolve().name,
        config=_config(directory, notes),
        summary=_summary(directory, notes),
        metrics=_lines(directory, "metrics", notes),
        events=_lines(directory, "events", notes),
        notes=notes,
    )


def _config(directory: RunDirectory, notes: list[str]) -> dict[str, Any]:
    try:
        return dict(_leaves(tomllib.loads(directory.config.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        notes.append("config.toml is missing")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        notes.append(f"config.toml cannot be read: {error}")
    return {}


def _summary(directory: RunDirectory, notes: list[str]) -> RunSummary | None:
    try:
        summary = directory.read_summary()
    except LedgerError as error:
        notes.append(str(error))
        return None
    if summary is None:
        notes.append("summary.json is not there yet: the run is still going, or it was killed")
    return summary


def _lines(directory: RunDirectory, kind: Literal["metrics", "events"], notes: list[str]) -> list[dict[str, Any]]:
    try:
        lines = directory.read_metrics() if kind == "metrics" else directory.read_events()
    except LedgerError as error:
        notes.append(str(error))
        return []
    if not lines:
        notes.append(f"{kind}.jsonl is missing or empty")
    return lines


def _leaves(table: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _number(value: Any) -> float | None:
    """A finite number, or None: NaN is written as null."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
