"""
Outcome or progress of a run in a few numbers, from the small files of its directory. A long run costs no more to read.

    broker.lock held                    running
    summary.json                        finished | failed | interrupted
    neither                             stopped: its broker was told to stop, was killed, or its machine went down
"""

import os
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.json_lines import JsonLines
from asyncrl.files.lock import is_locked
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.similar_path import did_you_mean

T = TypeVar("T")
RunStatus = Literal["running", "finished", "failed", "interrupted", "stopped"]


class RunOverview(Struct, frozen=True, kw_only=True):
    """One run, as far as its files could be read."""

    run: str
    """Name of the run directory."""
    status: RunStatus
    cause: str = ""
    """Reason of a failure."""
    step: int
    """Steps with metrics."""
    steps: int | None
    """Steps planned; None if the configuration cannot be read."""
    reward: float | None
    """Mean reward of the last step; None before the first."""
    base_accuracy: float | None
    accuracy: float | None
    """Held-out accuracy of the last evaluation; None before the first."""
    accuracy_failed: int = 0
    """Completions of the last evaluation that failed, and are not in its accuracy."""
    checkpoint: str = ""
    """Path of the newest checkpoint; empty without one."""
    began_at: str = ""
    """Time of the first event, ISO 8601; before it, that of the configuration; empty without one."""
    age_s: float | None = None
    """Seconds since then."""
    wall_s: float | None = None
    """Seconds that it took; None if no end is recorded."""
    num_bytes: int = 0
    """Space on disk."""
    metrics: dict[str, Any] = {}
    """Metrics of the last step."""
    notes: list[str] = []
    """One sentence for each file that could not be read."""


def is_run(path: Path) -> bool:
    """True if ``path`` is a run directory."""
    return RunDirectory(path).config.is_file()


def require_run(path: Path) -> RunDirectory:
    """A run directory; raises `ConfigError`, with the run that was probably meant, if ``path`` is none."""
    if not is_run(path):
        meant = did_you_mean(path, is_run)
        raise ConfigError(f"{path} is not a run directory: there is no config.toml in it{meant}")
    return RunDirectory(path)


def find_runs(folder: Path) -> list[Path]:
    """Run directories directly below ``folder``, by name. Empty if there is no such folder."""
    return sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []


def overview(path: Path, *, wall_clock: Callable[[], float] = time.time) -> RunOverview:
    """Read a run directory. A file that is missing or damaged leaves its values unset."""
    directory, notes = RunDirectory(path), list[str]()
    summary = _read(directory.read_summary, notes)
    line = _read(JsonLines(directory.metrics).last, notes) or {}
    base_accuracy, accuracy, accuracy_failed = _accuracies(directory, summary, notes)
    began_at = str((_read(JsonLines(directory.events).first, notes) or {}).get("at", "")) or _changed_at(
        directory.config
    )
    checkpoints = sorted(directory.checkpoints.glob("step_*/manifest.json"))
    return RunOverview(
        run=path.resolve().name,
        status=_status(directory, summary),
        cause=summary.cause if summary else "",
        step=summary.steps if summary else int(line.get("step", -1)) + 1,
        steps=summary.steps_planned if summary else _planned(directory.config, notes),
        reward=line.get("reward"),
        base_accuracy=base_accuracy,
        accuracy=accuracy,
        accuracy_failed=accuracy_failed,
        checkpoint=str(checkpoints[-1].parent) if checkpoints else "",
        began_at=began_at,
        age_s=wall_clock() - datetime.fromisoformat(began_at).timestamp() if began_at else None,
        wall_s=summary.wall_s if summary else None,
        num_bytes=sum(_sizes(path)),
        metrics=line,
        notes=notes,
    )


def _status(directory: RunDirectory, summary: RunSummary | None) -> RunStatus:
    if is_served(directory):
        return "running"
    return summary.status if summary else "stopped"


def is_served(directory: RunDirectory) -> bool:
    """True if a broker of this user on this machine serves the run."""
    return _is_held(directory.lock)


def is_starting(directory: RunDirectory) -> bool:
    """True if a broker serves the run and has yet to listen: it writes its address after it took the lock."""
    if not is_served(directory):
        return False
    try:
        return directory.address.stat().st_mtime_ns < directory.lock.stat().st_mtime_ns
    except FileNotFoundError:
        return True


def is_supervised(directory: RunDirectory) -> bool:
    """True if `asyncrl run` or `asyncrl resume` runs the run on this machine."""
    return _is_held(directory.supervisor_lock)


def _is_held(lock: Path) -> bool:
    try:
        return is_locked(lock)
    except PermissionError:  # The file is another user's, who alone can tell.
        return False


def _accuracies(
    directory: RunDirectory, summary: RunSummary | None, notes: list[str]
) -> tuple[float | None, float | None, int]:
    """Held-out accuracy before the first step, that of the last evaluation, and how many failed in the latter."""
    if summary:
        return summary.base_accuracy, summary.held_out_accuracy, summary.held_out_failed
    events = _read(directory.read_events, notes) or []
    measured = [event for event in events if event.get("event") == "eval.finished" and event.get("num_prompts")]
    base = next((event.get("accuracy") for event in measured if event.get("policy_version") == 0), None)
    last = measured[-1] if measured else {}
    return base, last.get("accuracy"), int(last.get("failed") or 0)


def _changed_at(path: Path) -> str:
    try:
        return (
            datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except FileNotFoundError:
        return ""


def _planned(config: Path, notes: list[str]) -> int | None:
    try:
        steps = tomllib.loads(config.read_text(encoding="utf-8")).get("run", {}).get("steps")
    except (OSError, ValueError) as error:
        notes.append(f"{config.name} cannot be read: {error}")
        return None
    return steps if isinstance(steps, int) else None


def _sizes(path: Path) -> Iterator[int]:
    """Space that each file takes on disk, in bytes. Files that vanish meanwhile take none."""
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                yield Path(folder, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue


def _read(read: Callable[[], T], notes: list[str]) -> T | None:
    try:
        return read()
    except LedgerError as error:
        notes.append(str(error))
        return None
