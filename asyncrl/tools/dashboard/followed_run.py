"""
A run directory that may still grow, read on from where the last reading ended.

    metrics.jsonl, events.jsonl ─ new lines ─┐
    config.toml, summary.json ─ if changed ──┴─▶ record: RunRecord      times.jsonl ─▶ times      samples/ ─▶ samples

A damaged or missing file becomes a note, as in `read_run`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.json_lines import JsonLines
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import NO_SUMMARY, RunRecord, is_run, is_served, read_settings
from asyncrl.similar_path import did_you_mean
from asyncrl.tools.dashboard.sample_index import SampleIndex
from asyncrl.tools.dashboard.sample_view import TokenTexts
from asyncrl.tools.dashboard.time_bands import TimesFile

T = TypeVar("T")
Signature = tuple[int, int] | None
"""Time of the last change in nanoseconds, and size in bytes; None for a file that does not exist."""


class FollowedRun:
    """
    One run. Not safe for several threads at once.

    Raises `ConfigError` if ``path`` is not a directory.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ConfigError(f"no such run: {path} is not a directory{did_you_mean(path, is_run)}")
        self.directory = directory = RunDirectory(path)
        self.name = path.resolve().name
        self.revision = 0
        """Number of changes noticed."""
        self.rewrites = 0
        """Times that a step was recorded again or a file was replaced, so that what was read before no longer holds."""
        self.changed_s: float | None = None
        """Time of the last change of metrics or events, in seconds since 1970; None without either file."""
        self.events: list[dict[str, Any]] = []
        self.samples = SampleIndex(directory.samples)
        self.times = TimesFile(directory.times)
        self._steps: dict[int, dict[str, Any]] = {}
        self._metrics: list[dict[str, Any]] = []
        self._config: dict[str, Any] = {}
        self._texts: TokenTexts | None = None
        self._summary: RunSummary | None = None
        self._notes: dict[str, str] = {}
        self._offsets = {directory.metrics: 0, directory.events: 0}
        self._seen: dict[Path, Signature] = {}

    def refresh(self) -> bool:
        """Read what is new; True if anything is."""
        directory = self.directory
        readers: dict[Path, Callable[[], None]] = {
            directory.config: self._read_config,
            directory.summary: self._read_summary,
            directory.metrics: self._read_metrics,
            directory.events: self._read_events,
        }
        others = [directory.samples, self.times.path]  # read when they are asked for
        changed = [path for path in (*readers, *others) if self._has_changed(path)]
        for path in changed:
            if path in readers:
                readers[path]()
        self.revision += bool(changed)
        return bool(changed)

    @property
    def record(self) -> RunRecord:
        """Everything that was read, without samples."""
        return RunRecord(
            name=self.name,
            config=self._config,
            summary=self._summary,
            metrics=self._metrics,
            events=self.events,
            is_served=is_served(self.directory),
            pictured=[],
            notes=list(self._notes.values()),
        )

    @property
    def texts(self) -> TokenTexts:
        """Texts of the policy's tokens."""
        if self._texts is None:
            self._texts = TokenTexts.of_run(self._config.get("model.path"), self.directory.checkpoints)
        return self._texts

    def _has_changed(self, path: Path) -> bool:
        try:
            found = path.stat()
            signature: Signature = found.st_mtime_ns, found.st_size
        except OSError:
            signature = None
        if path in self._seen and self._seen[path] == signature:
            return False
        self._seen[path] = signature
        if signature and path in self._offsets:
            self.changed_s = max(self.changed_s or 0.0, signature[0] / 1e9)
        return True

    def _read_config(self) -> None:
        notes = list[str]()
        found = read_settings(self.directory, notes)
        if not notes:  # Otherwise the last good one counts.
            self._config, self._texts = found, None
        self._notes.pop(self.directory.config.name, None)
        if notes:
            self._notes[self.directory.config.name] = notes[0]

    def _read_summary(self) -> None:
        found = self._noted(self.directory.summary, self.directory.read_summary, None)
        self._summary = found
        if found is None:
            self._notes.setdefault(self.directory.summary.name, NO_SUMMARY)

    def _read_metrics(self) -> None:
        def forget() -> None:
            self._steps.clear()

        for line in self._new_lines(self.directory.metrics, forget):
            step = line.get("step")
            if not isinstance(step, int):
                continue
            self.rewrites += bool(self._steps) and step <= next(reversed(self._steps))
            self._steps[step] = line
        if list(self._steps) != (ordered := sorted(self._steps)):
            self._steps = {step: self._steps[step] for step in ordered}
        self._metrics = list(self._steps.values())

    def _read_events(self) -> None:
        # A new list: what was handed out in a record stays as it was.
        before: list[dict[str, Any]] = list(self.events)
        self.events = before
        before.extend(self._new_lines(self.directory.events, before.clear))

    def _new_lines(self, path: Path, forget: Callable[[], None]) -> list[dict[str, Any]]:
        def read() -> list[tuple[dict[str, Any], int]]:
            return JsonLines(path).since(self._offsets[path])

        seen = self._seen[path]
        if self._offsets[path] > (seen[1] if seen else 0):  # replaced, or cut short
            self._offsets[path] = 0
            self.rewrites += 1
            forget()
        found: list[tuple[dict[str, Any], int]] = self._noted(path, read, [])
        if found:
            self._offsets[path] = found[-1][1]
        elif not self._offsets[path]:
            self._notes.setdefault(path.name, f"{path.name} is missing or empty")
        return [line for line, _ in found]

    def _noted(self, path: Path, read: Callable[[], T], default: T) -> T:
        self._notes.pop(path.name, None)
        try:
            return read()
        except LedgerError as error:
            self._notes[path.name] = str(error)
            return default
