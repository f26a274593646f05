"""
The files of a run.

    runs/NAME/
      config.toml      resolved: every value the run used
      ledger.sqlite    the broker's ledger of groups, trajectories and versions
      metrics.jsonl    one line per step
      times.jsonl      what each node did in each step, and what it waited for
      events.jsonl     evaluations, nodes lost, groups dropped, ...
      samples/         every consumed trajectory, one parquet file per step
      checkpoints/     step_000200/ ...
      spool/           payloads not yet trained on
      logs/            one file per process
      metrics/         addresses of the processes' metrics, for Prometheus, while they run
      models/          answers of models that environments and rewards asked, by node
      trackers/        each tracker's position in the files above, and its own files
      report.html      curves and headline numbers
      summary.json     outcome of the run; written last
      broker.address   address at which nodes reach the broker; one line for each that it listens on
      broker.lock      held by the broker while it serves the run; supervisor.lock by `asyncrl run` likewise
      secret           secret of the run's sockets, for its user alone
      sockets          part of the name of the folder of its unix sockets, if another user has taken the usual one

Only the broker's process writes events, metrics and the summary; any process of the run's user may read them at any
time, and with ``run.share_with_group`` those of its group.
"""

import glob
import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.run import require_folder_name
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.access import as_folder, close_folder, make_folder, require_unaltered
from asyncrl.files.atomic import needed, replacing
from asyncrl.files.checkpoints import newest_complete
from asyncrl.files.json_lines import JsonLines
from asyncrl.files.paths import absolute
from asyncrl.records.events import EventKind
from asyncrl.records.node_folder import node_folder
from asyncrl.records.states import RunOutcome
from asyncrl.records.times import TimesLine, rounded

LOCK_WAIT_S = 10.0
"""Time for an earlier broker of the run to end: one whose supervisor was killed notices within seconds."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """Outcome of a run, as written to summary.json."""

    name: str
    status: RunOutcome
    cause: str = ""
    """Reason of the failure in one line; empty if the run finished."""
    seed: int
    steps: int
    steps_planned: int
    goal: str = ""
    """The ``run.stop_when`` that an evaluation has met, so that the run is complete with fewer steps than planned."""
    versions: int
    """Number of policy versions published."""
    wall_s: float
    base_accuracy: float | None = None
    """Held-out accuracy before the first step; None if it was not evaluated."""
    held_out_accuracy: float | None = None
    """Held-out accuracy at the last evaluation; None if there was none."""
    base_reward: float | None = None
    """Mean held-out reward before the first step; None if it was not evaluated."""
    held_out_reward: float | None = None
    """Mean held-out reward at the last evaluation, the accuracy if rewards are 1 and 0; None if there was none."""
    held_out_failed: int = 0
    """Completions of the last evaluation that failed, and are not in its accuracy."""
    trained_tokens: int
    tokens_per_s: float | None = None
    """
    Trained tokens per second of all steps, from the first one's beginning to the last one's end, without loading;
    `asyncrl.records.measures` defines this and the next three.
    """
    step_s: float | None = None
    """Mean seconds of a step."""
    wait_trainer: float | None = None
    """Part of 1 of the time of the steps in which the trainer waited for a batch."""
    wait_rollout: float | None = None
    """Part of 1 of it in which rollouts waited, mean over them."""
    staleness_mean: float
    staleness_max: int
    logprob_gap_mean: float | None = None
    """Mean |rollout - trainer log-prob| under the same weights, nats, over comparable tokens; None without any."""
    logprob_gap_max: float | None = None
    ledger_records: int = 0
    """Records that the ledger had on disk; 0 if the broker did not write this summary."""
    ledger_head: str = ""
    """Digest of these records, which shows whether any of them was changed since."""
    failed: dict[str, int] = {}
    """
    Failed attempts to sample or grade a trajectory by cause, ``stage: reason``, most frequent first. Exceptions are
    named by type and place, such as ``reward: KeyError at score.py:12``.
    """
    failures: list[str] = []
    """Failures in words: ``KeyError at score.py:12 in 41 of 88 attempts at a verdict (47 %), such as 'answer'``."""
    groups_issued: int = 0
    """Training groups whose sampling began; 0 if the broker did not write this summary."""
    groups_failed: int = 0
    """Groups of these that were dropped because a trajectory failed for good."""
    directory: str = ""
    """Absolute path of the run directory, in what `asyncrl.run` returns; not in summary.json, which may be moved."""
    checkpoint: str = ""
    """Absolute path of the newest checkpoint in it, likewise; empty without one."""

    @property
    def goal_note(self) -> str:
        """The goal that ended the run, to stand behind its steps; empty without one."""
        return f" (run.stop_when: {self.goal})" if self.goal else ""


PLACES = ("directory", "checkpoint")
SCREEN = "screen"
"""Name of the log with the lines that `asyncrl run` has printed, which are no events."""


def content_of(summary: RunSummary) -> bytes:
    """Content of summary.json."""
    values = {key: value for key, value in msgspec.to_builtins(summary).items() if key not in PLACES}
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"


class RunDirectory:
    """
    Paths in one run directory; reads and writes its records. Reading a directory that does not exist gives no records.

    ``wall_clock`` returns seconds since 1970, the time of an event.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.ledger = path / "ledger.sqlite"
        self.metrics = path / "metrics.jsonl"
        self.times = path / "times.jsonl"
        self.events = path / "events.jsonl"
        self.samples = path / "samples"
        self.checkpoints = path / "checkpoints"
        self.spool = path / "spool"
        self.logs = path / "logs"
        self.screen = self.logs / f"{SCREEN}.log"
        self.models = path / "models"
        self.trackers = path / "trackers"
        self.report = path / "report.html"
        self.summary = path / "summary.json"
        self.address = path / "broker.address"
        self.lock = path / "broker.lock"
        self.supervisor_lock = path / "supervisor.lock"
        self.secret = path / "secret"
        self.local_key = path / "key"
        """Key of nodes of this user on this machine, while and after a broker with keys serves the run."""
        self._wall_clock = wall_clock

    @classmethod
    def create(cls, parent: Path, name: str, *, group_reads: bool = False) -> "RunDirectory":
        """
        Create the directory ``name``, or ``name-2``, ``name-3``, ... if it exists: no run is ever overwritten. No other
        user can enter it, but for its group if that ``group_reads``.

        Raises `ConfigError` if that fails, or ``name`` is not the name of a single folder.
        """
        require_folder_name(name)
        number = 1
        while True:
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                make_folder(path, group_reads=group_reads)
            except OSError as error:
                if parent.exists() and not parent.is_dir():
                    raise ConfigError(f"run.dir {parent} is a file, not a folder") from None
                if not isinstance(error, FileExistsError):
                    raise ConfigError(f"cannot create the run directory {path}: {error.strerror}") from error
                number += 1
            else:
                return cls(path)._with_folders()

    @classmethod
    def newest(cls, parent: Path, name: str) -> "RunDirectory | None":
        """The last one that `create` has made for ``name``; None if there is none."""
        found = cls.numbered(parent, name)
        return cls(found[-1]) if found else None

    @classmethod
    def numbered(cls, parent: Path, name: str) -> list[Path]:
        """Every directory that `create` has made for ``name``, in order."""
        suffixes = (path.name.removeprefix(f"{name}-") for path in parent.glob(f"{glob.escape(name)}-*"))
        later = sorted(int(number) for number in suffixes if number.isdecimal())
        return [path for path in (parent / name, *(parent / f"{name}-{number}" for number in later)) if path.is_dir()]

    @classmethod
    def reopen(cls, path: Path) -> "RunDirectory":
        """
        Open the directory of a run that continues, and delete its summary, which no longer holds.

        Raises `ConfigError` if there is no run in ``path``, and `RunFailed` if the disk refuses a write.
        """
        directory = cls(path)
        if not directory.config.is_file():
            raise ConfigError(node_folder(path) or f"no run to resume: {directory.config} does not exist")
        with needed(directory.summary):
            directory.summary.unlink(missing_ok=True)
            return directory._with_folders()

    def close(self, *, group_reads: bool = False) -> str:
        """
        Keep other users out of the directory of an existing run. Returns a sentence if they could enter it before.

        Raises `ConfigError` if one of them could have written config.toml.
        """
        if self.config.is_file():
            require_unaltered(self.config, "configuration")
        return close_folder(self.path, group_reads=group_reads)

    def write_config(self, text: str) -> None:
        """Replace config.toml atomically. Raises `RunFailed` if the disk refuses the write."""
        with needed(self.config), replacing(self.config) as unfinished:
            unfinished.write_text(text)
            as_folder(unfinished)

    def append_event(self, kind: EventKind, /, **fields: Any) -> None:
        """Append ``{"event": kind, "at": "2026-01-31T12:00:00.123Z", ...fields}`` to events.jsonl."""
        at = datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="milliseconds")
        JsonLines(self.events).append({"event": kind, "at": at.replace("+00:00", "Z"), **fields})

    def append_metrics(self, metrics: Mapping[str, float]) -> None:
        JsonLines(self.metrics).append(metrics)

    def append_times(self, line: TimesLine) -> None:
        """Append a line, its seconds in tenths of milliseconds. Raises `RunFailed` if the disk refuses."""
        JsonLines(self.times).append(rounded(msgspec.to_builtins(line)))

    def read_times(self) -> list[TimesLine]:
        """Times of all nodes, in order; raises as `read_events`."""
        try:
            return [msgspec.convert(line, TimesLine) for line in JsonLines(self.times).read()]
        except msgspec.ValidationError as error:
            problem = f"has a line that describes no stretch of a run: {error}; remove it"
            raise LedgerError(f"{self.times} {problem}") from error

    def read_events(self) -> list[dict[str, Any]]:
        """Every event so far, in order. Raises `LedgerError` if the file is damaged."""
        return JsonLines(self.events).read()

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step, as `each_step` yields them. Raises as `read_events`."""
        return list(self.each_step())

    def each_step(self, end: float = math.inf) -> Iterator[dict[str, Any]]:
        """
        Yield the metrics of every step in the first ``end`` bytes, ordered by step; of a repeated step, the later line.

        Only repeated steps are held. Raises as `read_events`.
        """
        again = {step: line for step, line, is_new in self._numbered(end) if not is_new}
        first = ((step, line) for step, line, is_new in self._numbered(end) if is_new and step not in again)
        for _, line in heapq.merge(first, sorted(again.items(), key=itemgetter(0)), key=itemgetter(0)):
            yield line

    def _numbered(self, end: float) -> Iterator[tuple[int, dict[str, Any], bool]]:
        """Yield each line of metrics.jsonl with its step, and whether that is higher than all before."""
        highest = -1
        for line, line_end in JsonLines(self.metrics).since(0):
            if line_end > end:
                return
            if isinstance(step := line.get("step"), int):
                yield step, line, step > highest
                highest = max(highest, step)

    def write_summary(self, summary: RunSummary) -> None:
        """Write summary.json atomically. Raises `RunFailed` if the disk refuses the write."""
        with needed(self.summary), replacing(self.summary) as unfinished:
            unfinished.write_bytes(content_of(summary))
            as_folder(unfinished)

    def located(self, summary: RunSummary) -> RunSummary:
        """The summary with the places of the run directory and of its newest checkpoint."""
        newest = newest_complete(self.checkpoints)
        checkpoint = str(absolute(newest[1])) if newest else ""
        return replace(summary, directory=str(absolute(self.path)), checkpoint=checkpoint)

    def read_summary(self) -> RunSummary | None:
        """The summary; None while the run continues or if it was killed. Raises `LedgerError` if it is damaged."""
        try:
            return msgspec.json.decode(self.summary.read_bytes(), type=RunSummary)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self.summary} is not a summary: {error}; remove it") from error

    def finished_summary(self) -> RunSummary | None:
        """The summary of a run that made its steps; None for any other. Raises as `read_summary`."""
        summary = self.read_summary()
        return summary if summary is not None and summary.status == "finished" else None

    def _with_folders(self) -> "RunDirectory":
        for folder in (self.samples, self.checkpoints, self.spool, self.logs):
            if not folder.exists():
                folder.mkdir()
                as_folder(folder)
        return self

    def __repr__(self) -> str:
        return f"<RunDirectory {self.path}>"
