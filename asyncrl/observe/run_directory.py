"""
What a run leaves behind, and what each thing is called.

    runs/NAME/
      config.toml      resolved: every value the run used
      ledger.sqlite    the broker's accounts
      metrics.jsonl    one line a step
      events.jsonl     what happened: evaluations, nodes lost, groups dropped, ...
      samples/         every consumed trajectory, one parquet file a step
      checkpoints/     step_000200/ ...
      spool/           payloads not yet trained on
      logs/            one file a process
      trackers/        how far each tracker has come, and what it keeps here
      report.html      curves and headline numbers
      summary.json     written last: how it ended
      broker.address   where the broker listens

Only the broker's process writes events, metrics and the summary; anybody may read them, at any time.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.atomic import replacing
from asyncrl.files.disk import needed
from asyncrl.files.json_lines import JsonLines


class RunSummary(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    name: str
    status: Literal["finished", "failed"]
    cause: str = ""
    """Why it failed, in one line; empty if it did not."""
    seed: int
    steps: int
    """Optimizer steps done."""
    steps_planned: int
    versions: int
    """Policy versions published."""
    wall_s: float
    base_accuracy: float | None = None
    """Held-out accuracy before the first step; None if it was not evaluated."""
    held_out_accuracy: float | None = None
    """Held-out accuracy at the last evaluation; None if there was none."""
    trained_tokens: int
    staleness_mean: float
    staleness_max: int
    logprob_gap_mean: float | None = None
    """
    How far the rollouts' log-probs were from the trainer's under the same weights, nats: mean over the tokens that
    could be compared. None if there were none.
    """
    logprob_gap_max: float | None = None


class RunDirectory:
    """
    The names in one run directory, and the records kept there.

    Args:
        path: The directory; it need not exist to be read.
        wall_clock: Seconds since 1970, for the time of an event.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.ledger = path / "ledger.sqlite"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.samples = path / "samples"
        self.checkpoints = path / "checkpoints"
        self.spool = path / "spool"
        self.logs = path / "logs"
        self.trackers = path / "trackers"
        self.report = path / "report.html"
        self.summary = path / "summary.json"
        self.address = path / "broker.address"
        self._wall_clock = wall_clock

    @classmethod
    def create(cls, parent: Path, name: str) -> "RunDirectory":
        """
        A new directory ``name``, or ``name-2``, ``name-3``, ... if that is taken: runs are never written over.

        Raises:
            ConfigError: It cannot be made there, or ``name`` is not the name of one folder.
        """
        if not name or name == ".." or Path(name).name != name:
            raise ConfigError(f"run.name is {name!r}: expected the name of one folder, without '/'")
        number = 1
        while True:
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()
            except FileExistsError:
                if not parent.is_dir():
                    raise ConfigError(f"run.dir {parent} is a file, not a folder") from None
                number += 1
            except OSError as error:
                raise ConfigError(f"cannot make the run directory {path}: {error.strerror}") from error
            else:
                return cls(path)._with_folders()

    @classmethod
    def reopen(cls, path: Path) -> "RunDirectory":
        """
        The directory of a run that goes on. Its summary no longer holds, and is taken away.

        Raises:
            ConfigError: There is no run.
            RunFailed: The disk does not let it go on.
        """
        directory = cls(path)
        if not directory.config.is_file():
            raise ConfigError(f"no run to resume: {directory.config} does not exist")
        with needed(directory.summary):
            directory.summary.unlink(missing_ok=True)
            return directory._with_folders()

    def write_config(self, text: str) -> None:
        """Keep what the run is: whole or not at all. Raises `RunFailed` if the disk does not take it."""
        with needed(self.config), replacing(self.config) as unfinished:
            unfinished.write_text(text)

    def append_event(self, kind: str, /, **fields: Any) -> None:
        """Note what happened: ``{"event": kind, "at": "2026-01-31T12:00:00.123Z", ...fields}``."""
        at = datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="milliseconds")
        JsonLines(self.events).append({"event": kind, "at": at.replace("+00:00", "Z"), **fields})

    def append_metrics(self, metrics: Mapping[str, float]) -> None:
        """Note the metrics of one step."""
        JsonLines(self.metrics).append(metrics)

    def read_events(self) -> list[dict[str, Any]]:
        """Every event so far. Raises `LedgerError` if the file is damaged."""
        return JsonLines(self.events).read()

    def read_metrics(self) -> list[dict[str, Any]]:
        """
        The metrics of every step so far, in order of steps; of a step that was done again, the later line.

        Raises:
            LedgerError: The file is damaged.
        """
        lines = JsonLines(self.metrics).read()
        by_step = {line["step"]: line for line in lines if isinstance(line.get("step"), int)}
        return [by_step[step] for step in sorted(by_step)]

    def write_summary(self, summary: RunSummary) -> None:
        """Say how the run ended: whole or not at all. Raises `RunFailed` if the disk does not take it."""
        with needed(self.summary), replacing(self.summary) as unfinished:
            unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")

    def read_summary(self) -> RunSummary | None:
        """
        How the run ended; None while it goes on, or if it was killed.

        Raises:
            LedgerError: It is not a summary.
        """
        try:
            return msgspec.json.decode(self.summary.read_bytes(), type=RunSummary)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self.summary} is not a summary: {error}; remove it") from error

    def _with_folders(self) -> "RunDirectory":
        for folder in (self.samples, self.checkpoints, self.spool, self.logs):
            folder.mkdir(exist_ok=True)
        return self

    def __repr__(self) -> str:
        return f"<RunDirectory {self.path}>"
