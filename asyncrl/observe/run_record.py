"""
Everything that a run directory records about a run: finished, failed, still running, or killed.

A missing or damaged file becomes a note, not an error, and the other files are read all the same: a report is needed
most when something went wrong.
"""

import math
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct

from asyncrl.config.config import leaves
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.observe.pictured_samples import PicturedSample, read_pictured_samples
from asyncrl.observe.report.axes import Point
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.run_overview import is_run
from asyncrl.observe.sampled_episodes import SampledEpisode, read_first_episodes
from asyncrl.observe.times import TimesLine
from asyncrl.similar_path import did_you_mean

T = TypeVar("T")
Status = Literal["finished", "failed", "interrupted", "open"]
"""``open``: no end is recorded. The run may continue, or have been killed."""

NO_SUMMARY = "summary.json does not exist yet: the run is still running, or it was killed"
NOT_METRICS = ("policy_version", "accuracy", "num_prompts", "time_s")
"""Fields of an ``eval.finished`` event that do not go into `EvaluationEvent.metrics`."""


class EvaluationEvent(Struct, frozen=True):
    """One evaluation on the held-out prompts: an ``eval.finished`` event."""

    policy_version: int
    accuracy: float
    num_prompts: int
    time_s: float | None
    """Seconds since the run's start."""
    metrics: dict[str, float] = {}
    """Further metrics, such as ``pass@4``; finite numbers only."""


class SettingChange(Struct, frozen=True):
    """A setting that got another value while the run went on: a ``setting.changed`` event."""

    key: str
    value: Any
    step: int
    """Optimizer steps done before it."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """Config, metrics, events and summary of a run, as far as they could be read."""

    name: str
    config: dict[str, Any]
    """Every value under its full key, such as ``schedule.staleness``."""
    summary: RunSummary | None
    metrics: list[dict[str, Any]]
    """One entry per step, in order."""
    events: list[dict[str, Any]]
    pictured: list[PicturedSample]
    """Samples whose prompts have pictures, for the report."""
    times: list[TimesLine] = []
    """Times of all nodes, in order; read by `RunDirectory.read_times`, because they may have a gigabyte."""
    notes: list[str]
    """One sentence for each file that could not be read."""
    episodes: list[SampledEpisode] = []
    """Some episodes of the last step, for the report."""

    @property
    def status(self) -> Status:
        if self.summary:
            return self.summary.status
        ended = self._ended()
        return "open" if ended is None else ended.get("status", "finished")

    @property
    def cause(self) -> str:
        if self.summary:
            return self.summary.cause
        return str((self._ended() or {}).get("cause") or "")

    @property
    def wall_s(self) -> float | None:
        """Duration of the run, or up to its last recorded step; None if no step was recorded."""
        if self.summary:
            return self.summary.wall_s
        times = self.curve("time_s")
        return times[-1][1] if times else None

    @property
    def metric_names(self) -> list[str]:
        return list(dict.fromkeys(name for line in self.metrics for name in line))

    @property
    def live_settings(self) -> dict[str, Any]:
        """Settings that were changed while the run went on, by full key, as they are by now."""
        return {change.key: change.value for change in self.changes()}

    def changes(self) -> list[SettingChange]:
        """Settings that were changed while the run went on, in order."""
        done_s = [time_s for _, time_s in self.curve("time_s")]
        return [
            SettingChange(event["key"], event["value"], sum(s <= (_number(event.get("time_s")) or 0.0) for s in done_s))
            for event in self._changes()
            if "key" in event and "value" in event
        ]

    @property
    def changed_s(self) -> float:
        """Time of the last change of a setting, in seconds since the run's start; 0 without one."""
        return max((_number(event.get("time_s")) or 0.0 for event in self._changes()), default=0.0)

    def curve(self, key: str, x_key: str = "step") -> list[Point]:
        """``(x, value)`` of every step that recorded a finite number under both keys."""
        points = ((_number(line.get(x_key)), _number(line.get(key))) for line in self.metrics)
        return [(x, y) for x, y in points if x is not None and y is not None]

    def mean(self, key: str, weight: str = "") -> float | None:
        """Mean over steps, weighted by the metric ``weight`` if it was recorded; None if ``key`` was not recorded."""
        pairs = self.curve(key, weight or "step")
        total = sum(x for x, _ in pairs) if weight else 0.0
        if total > 0:
            return sum(x * y for x, y in pairs) / total
        values = [y for _, y in self.curve(key)]
        return sum(values) / len(values) if values else None

    def total(self, key: str) -> float | None:
        """Sum over steps; None if nothing was recorded."""
        values = [y for _, y in self.curve(key)]
        return sum(values) if values else None

    def evaluations(self) -> list[EvaluationEvent]:
        """
        Every evaluation, ordered by version; of a version evaluated twice, the later one.

        One in which every prompt failed has measured nothing, and is left out.
        """
        found: dict[int, EvaluationEvent] = {}
        for event in (event for event in self.events if event.get("event") == "eval.finished"):
            version, accuracy = event.get("policy_version"), _number(event.get("accuracy"))
            prompts = int(_number(event.get("num_prompts")) or 0)
            if isinstance(version, int) and accuracy is not None and prompts:
                numbers = {key: number for key in event if (number := _number(event[key])) is not None}
                metrics = {key: number for key, number in numbers.items() if key not in NOT_METRICS}
                found[version] = EvaluationEvent(version, accuracy, prompts, numbers.get("time_s"), metrics)
        return [found[version] for version in sorted(found)]

    def _changes(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == "setting.changed"]

    def _ended(self) -> dict[str, Any] | None:
        """The ``run.finished`` event; None if the run was resumed after it."""
        ends = ("run.started", "run.resumed", "run.finished")
        last = [event for event in self.events if event.get("event") in ends][-1:]
        return last[0] if last and last[0]["event"] == "run.finished" else None


def read_run(path: Path) -> RunRecord:
    """Read a run directory. Raises `ConfigError` if ``path`` is not a directory."""
    if not path.is_dir():
        raise ConfigError(f"no such run: {path} is not a directory{did_you_mean(path, is_run)}")
    directory, notes = RunDirectory(path), list[str]()
    return RunRecord(
        name=path.resolve().name,
        config=_config(directory, notes),
        summary=_read(directory.read_summary, None, NO_SUMMARY, notes),
        metrics=_read(directory.read_metrics, [], "metrics.jsonl is missing or empty", notes),
        events=_read(directory.read_events, [], "events.jsonl is missing or empty", notes),
        pictured=_read(partial(read_pictured_samples, directory.samples), [], "", notes),
        episodes=_read(partial(read_first_episodes, directory.samples), [], "", notes),
        notes=notes,
    )


def _config(directory: RunDirectory, notes: list[str]) -> dict[str, Any]:
    try:
        return dict(leaves(tomllib.loads(directory.config.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        notes.append("config.toml is missing")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        notes.append(f"config.toml cannot be read: {error}")
    return {}


def _read(read: Callable[[], T], default: T, missing: str, notes: list[str]) -> T:
    try:
        found = read()
    except LedgerError as error:
        notes.append(str(error))
        return default
    if not found and missing:
        notes.append(missing)
    return found


def _number(value: Any) -> float | None:
    """``value`` if it is a finite number, else None. NaN is recorded as null."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
