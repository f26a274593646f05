"""
`asyncrl track`: feeds the records of a run to a tracker, the existing ones, then new ones, then the summary.

    metrics.jsonl ─┐
    events.jsonl  ─┼─ from the cursor on ─▶ tracker.log, .event, .finish ─▶ cursor
    summary.json  ─┘

The run's files are only read, so a tracker cannot disturb the run. The cursor moves after each line: a restarted
process continues with the next line, and repeats at most the one during which it was killed.
"""

import fcntl
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.config.config import leaves
from asyncrl.config.run_file import load_config
from asyncrl.config.toml import read
from asyncrl.errors import ConfigError, LedgerError, TrackerError
from asyncrl.files.atomic import replacing
from asyncrl.files.json_lines import JsonLines
from asyncrl.plug_in import describe
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import require_run
from asyncrl.records.trackers import RunDescription, Tracker, label, make_tracker

# ── deadline ──────────────────────────────────────────────────────────────────────────────────
# Time limit for calls into third-party code that may hang.


def leave(why: str) -> None:
    """Print ``why`` and exit this process at once, with the exit code of `TrackerError`."""
    sys.stderr.write(f"asyncrl: {why}\n")
    sys.stderr.flush()
    os._exit(TrackerError.exit_code)


@contextmanager
def call_limit(what: str, seconds: float, expired: Callable[[str], None] = leave) -> Iterator[None]:
    """
    Context of the call ``what``. If it takes longer, another thread calls ``expired`` with a sentence about that.

    A blocked thread cannot be interrupted, but its process can be ended; the default `leave` does that.
    """
    timer = threading.Timer(seconds, expired, [f"{what} took more than {seconds:g} s"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


# ── follower ──────────────────────────────────────────────────────────────────────────────────

SECRET = re.compile(r"(key|token|secret|password|authorization)$", re.IGNORECASE)
"""Settings whose key ends in one of these words are not passed to trackers."""
EVALUATED = "eval.finished"


class Cursor(Struct, frozen=True, kw_only=True):
    metrics: int = 0
    """Bytes of metrics.jsonl passed on; ``events`` the same for events.jsonl."""
    events: int = 0
    step: int = 0
    """Optimizer steps done up to the last line passed on."""


class Follower:
    """Feeds one run to one tracker, whose short name ``label`` names its folder. ``timeout_s`` limits each call."""

    def __init__(self, directory: RunDirectory, tracker: Tracker, label: str, timeout_s: float) -> None:
        self._directory = directory
        self._tracker = tracker
        self._label = label
        self._timeout_s = timeout_s
        self._folder = directory.trackers / label
        self._path = self._folder / "cursor.json"
        self._metrics, self._events = JsonLines(directory.metrics), JsonLines(directory.events)
        self._config: dict[str, Any] = dict(leaves(read(directory.config, "config file")))
        self._cursor = Cursor()
        self._counts: Counter[str] = Counter()

    def start(self) -> None:
        """Start the tracker at its saved cursor, if there is one. Raises as `advance`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cursor = self._read_cursor()
        self._counts.update(
            str(event.get("event")) for event, end in self._events.since(0) if end <= self._cursor.events
        )
        path = self._directory.path
        config = {key: value for key, value in self._config.items() if not SECRET.search(key)}
        run = RunDescription(name=path.resolve().name, path=path, folder=self._folder, config=config)
        self._call("start", self._tracker.start, run)

    def advance(self) -> bool:
        """
        Pass new records on; True once the run has ended, every record is passed on and the tracker has finished.

        Raises `TrackerError` if the tracker raises, and `LedgerError` if a file is damaged or shorter than the cursor.
        """
        summary = self._directory.read_summary()  # Read first, because the broker writes it last.
        for line, end in self._metrics.since(self._cursor.metrics):
            step = int(line.get("step", -1)) + 1
            self._log(step, {f"train/{name}": value for name, value in line.items() if name != "step"})
            self._move(metrics=end, step=step)
        for event, end in self._events.since(self._cursor.events):
            self._pass_on(event)
            self._move(events=end)
        if summary is not None:
            self._call("finish", self._tracker.finish, summary)
        return summary is not None

    def leave(self) -> None:
        """Finish the tracker before the run has ended."""
        self._call("finish", self._tracker.finish, None)

    def _pass_on(self, event: dict[str, Any]) -> None:
        kind = str(event.get("event"))
        fields = {key: value for key, value in event.items() if key != "event"}
        if kind == EVALUATED:
            version = int(fields.pop("policy_version"))
            fields.pop("time_s", None)
            planned, each = (int(self._config.get(key, 0)) for key in ("run.steps", "schedule.steps_per_publish"))
            step = min(version * max(each, 1), planned or version)
            self._log(step, {f"eval/{name}": value for name, value in fields.items()})
            return
        self._counts[kind] += 1
        self._call("event", self._tracker.event, self._cursor.step, kind, fields)
        self._log(self._cursor.step, {f"events/{kind}": float(self._counts[kind])})

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the values that are numbers; NaN is recorded as null, and left out."""
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        if numbers:
            self._call("log", self._tracker.log, step, numbers)

    def _read_cursor(self) -> Cursor:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Cursor)
        except FileNotFoundError:
            return Cursor()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self._path} is damaged: {error}; remove it to send every record again") from error

    def _move(self, **to: int) -> None:
        self._cursor = msgspec.structs.replace(self._cursor, **to)
        with replacing(self._path, durable=False) as unfinished:
            unfinished.write_bytes(msgspec.json.encode(self._cursor))

    def _call(self, what: str, function: Callable[..., None], *arguments: Any) -> None:
        where = f"{self._label}.{what}"
        with call_limit(where, self._timeout_s):
            try:
                function(*arguments)
            except Exception as error:  # A tracker may raise anything.
                raise TrackerError(f"{where}: {describe(error, __file__)}") from error


# ── track ─────────────────────────────────────────────────────────────────────────────────────
# `asyncrl track`: sends the records of a run to a tracker, during the run or afterwards.

POLL_S = 1.0


def track_run(path: Path, name: str, overrides: Sequence[str], *, once: bool) -> None:
    """
    Send the records of a run to the tracker ``name``, from its cursor to the end of the run, or until SIGTERM.

    ``trackers.use`` need not contain the tracker. With ``once``, only the existing records are sent.
    Raises `ConfigError` if the run or the tracker does not exist, or another process sends the same run to it, and
    `TrackerError` if the tracker fails.
    """
    directory = require_run(path)
    config = load_config(directory.config, overrides).trackers
    tracker = make_tracker(name, config.options.get(name, {}))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with _locked(directory.trackers / label(name), name):
        follower = Follower(directory, tracker, label(name), config.timeout_s)
        follower.start()
        while not follower.advance():
            if once or stopping.wait(POLL_S):
                follower.leave()
                return


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process already sends this run to {name!r}; wait until that process has ended"
            ) from None
        yield
