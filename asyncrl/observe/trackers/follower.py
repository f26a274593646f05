"""
Hands a run over to a tracker: all that is there, then what is added, then how it ended.

    metrics.jsonl ─┐
    events.jsonl  ─┼─ from the cursor on ─▶ tracker.log, .event, .finish ─▶ cursor
    summary.json  ─┘

The files of the run are read and never written, so whatever a tracker does, the run does not notice. The cursor moves
after each line: who starts again goes on with the next one, and repeats at most the one at which it was killed.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.config.sections import leaves
from asyncrl.config.toml import read
from asyncrl.errors import LedgerError, TrackerError
from asyncrl.files.atomic import replacing
from asyncrl.files.json_lines import JsonLines
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.trackers.deadline import Deadline
from asyncrl.observe.trackers.tracker import Tracked, Tracker
from asyncrl.plug_in import describe

SECRET = re.compile(r"(key|token|secret|password|authorization)$", re.IGNORECASE)
"""Last word of a setting that nobody else is to see."""
EVALUATED = "eval.finished"


class Cursor(Struct, frozen=True, kw_only=True):
    """How far one tracker has come."""

    metrics: int = 0
    """Bytes of metrics.jsonl."""
    events: int = 0
    step: int = 0
    """Optimizer steps done by what was handed over."""


class Follower:
    """
    One tracker of one run.

    Args:
        label: Of the tracker; names its folder.
        deadline: For each call of it.
    """

    def __init__(self, directory: RunDirectory, tracker: Tracker, label: str, deadline: Deadline) -> None:
        self._directory = directory
        self._tracker = tracker
        self._label = label
        self._deadline = deadline
        self._folder = directory.trackers / label
        self._path = self._folder / "cursor.json"
        self._metrics, self._events = JsonLines(directory.metrics), JsonLines(directory.events)
        self._config: dict[str, Any] = dict(leaves(read(directory.config, "config file")))
        self._cursor = Cursor()
        self._counts: Counter[str] = Counter()

    def start(self) -> None:
        """
        Begin, or go on where the cursor is.

        Raises:
            TrackerError: The tracker raised.
            LedgerError: What an earlier one left is damaged, or shorter than it was.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cursor = self._read_cursor()
        self._counts.update(
            str(event.get("event")) for event, end in self._events.since(0) if end <= self._cursor.events
        )
        path = self._directory.path
        config = {key: value for key, value in self._config.items() if not SECRET.search(key)}
        run = Tracked(name=path.resolve().name, path=path, folder=self._folder, config=config)
        self._call("start", self._tracker.start, run)

    def advance(self) -> bool:
        """
        Hand over what is new.

        Returns:
            The run has ended, and everything is handed over; the tracker has finished.

        Raises:
            TrackerError: The tracker raised.
            LedgerError: A file of the run is damaged.
        """
        summary = self._directory.read_summary()  # First: it is written last.
        for line, end in self._metrics.since(self._cursor.metrics):
            step = int(line.get("step", -1)) + 1
            self._log(step, {f"train/{name}": value for name, value in line.items() if name != "step"})
            self._move(metrics=end, step=step)
        for event, end in self._events.since(self._cursor.events):
            self._happened(event)
            self._move(events=end)
        if summary is not None:
            self._call("finish", self._tracker.finish, summary)
        return summary is not None

    def leave(self) -> None:
        """Stop before the run has ended."""
        self._call("finish", self._tracker.finish, None)

    def _happened(self, event: dict[str, Any]) -> None:
        kind = str(event.get("event"))
        fields = {key: value for key, value in event.items() if key != "event"}
        if kind == EVALUATED:
            version = int(fields.pop("policy_version"))
            fields.pop("time_s", None)
            self._log(self._steps_in(version), {f"eval/{name}": value for name, value in fields.items()})
            return
        self._counts[kind] += 1
        self._call("event", self._tracker.event, self._cursor.step, kind, fields)
        self._log(self._cursor.step, {f"events/{kind}": float(self._counts[kind])})

    def _steps_in(self, policy_version: int) -> int:
        """Optimizer steps that made a version."""
        steps, each = (int(self._config.get(key, 0)) for key in ("run.steps", "schedule.steps_per_publish"))
        return min(policy_version * max(each, 1), steps or policy_version)

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        """Whatever is a number. NaN is null in the files, and has no place on a curve."""
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        if numbers:
            self._call("log", self._tracker.log, step, numbers)

    def _read_cursor(self) -> Cursor:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Cursor)
        except FileNotFoundError:
            return Cursor()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self._path} is damaged: {error}; remove it to hand over everything again") from error

    def _move(self, **to: int) -> None:
        self._cursor = msgspec.structs.replace(self._cursor, **to)
        with replacing(self._path, durable=False) as unfinished:
            unfinished.write_bytes(msgspec.json.encode(self._cursor))

    def _call(self, what: str, function: Callable[..., None], *arguments: Any) -> None:
        where = f"{self._label}.{what}"
        with self._deadline.on(where):
            try:
                function(*arguments)
            except Exception as error:  # Somebody else's code, and somebody else's network.
                raise TrackerError(f"{where}: {describe(error, __file__)}") from error
