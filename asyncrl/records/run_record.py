"""
Reader of run directories: whether a run goes on, a few numbers of it, or everything that it recorded.

    broker.lock held                    running
    summary.json                        finished | failed | interrupted
    neither                             as the last event says, else stopped; and of a `RunRecord`, whose broker may
                                        be on another machine, running if anything was recorded lately

`overview` reads the small files alone, so a long run costs no more; `read_run` reads all. A missing or damaged file
becomes a note, not an error, and the other files are read all the same: a report is needed most when something went
wrong.
"""

import math
import os
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from msgspec import Struct

from asyncrl.config.config import leaves
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.json_lines import JsonLines
from asyncrl.files.lock import is_locked
from asyncrl.records.evaluation_metrics import graded_reward
from asyncrl.records.events import EventKind
from asyncrl.records.formatting import counted, duration
from asyncrl.records.history import StepHistory
from asyncrl.records.measures import RECENT, Ends, Measures, ends_of, finite
from asyncrl.records.node_folder import node_folder
from asyncrl.records.resuming import no_checkpoint
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.samples import PicturedSample, SampledEpisode, read_first_episodes, read_pictured_samples
from asyncrl.records.states import RunOutcome, RunState
from asyncrl.records.times import TimesLine
from asyncrl.similar_path import did_you_mean

T = TypeVar("T")
Event = dict[str, Any]

NOT_METRICS = ("policy_version", "accuracy", "num_prompts", "max_tokens", "time_s")
"""Fields of an ``eval.finished`` event that do not go into `EvaluationEvent.metrics`."""
SILENT_S = 60.0
"""Seconds without a record after which a run is silent; longer if its steps are longer."""
RESTART_S = 30.0
"""Seconds in which a service manager has started a broker again."""
ENDS = ("run.started", "run.resumed", "run.finished")
"""Events of which the last tells whether the run has ended."""
PAUSES = ("sampling.paused", "sampling.resumed")
"""Events of which the last tells whether an operator has paused the run."""
REFUSED_EVENT: EventKind = "broker.refused"
"""Event with the ``cause`` for which a broker did not serve the run: its run file is wrong, or a file is damaged."""
SHARED_EVENT: EventKind = "data.prompts_shared"
"""Event that counts held-out prompts which are trained on."""

# ── runs ──────────────────────────────────────────────────────────────────────────────────────


def is_run(path: Path) -> bool:
    """True if ``path`` is a run directory."""
    return RunDirectory(path).config.is_file()


def require_run(path: Path) -> RunDirectory:
    """A run directory; raises `ConfigError`, with the run that was probably meant, if ``path`` is none."""
    if not is_run(path):
        if elsewhere := node_folder(path):
            raise ConfigError(elsewhere)
        raise ConfigError(f"{path} is not a run directory: there is no config.toml in it{meant_run(path)}")
    return RunDirectory(path)


def meant_run(path: Path) -> str:
    """End of a sentence with the run that was probably meant by ``path``, in it or beside it; empty without one."""
    runs = find_runs(path)
    if len(runs) > 1:
        return f"; it is a folder of runs: give one, such as {runs[-1]}"
    return f"; did you mean {runs[0]}?" if runs else did_you_mean(path, is_run)


def find_runs(folder: Path) -> list[Path]:
    """Run directories directly below ``folder``, by name. Empty if there is no such folder."""
    return sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []


def labels(runs: Sequence[Path]) -> list[str]:
    """Name of each of several runs: its folder, with as many of the folders above it as tell it from the others."""
    parts = [path.resolve().parts for path in runs]
    found = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        found.append("/".join(own[-length:]).lstrip("/") if length < len(own) else own[-1])
    return found


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


def is_going_on(directory: RunDirectory) -> bool:
    """True if a process of this user on this machine serves the run, or starts and ends its broker."""
    return is_served(directory) or is_supervised(directory)


def is_running(directory: RunDirectory) -> bool:
    """
    True if a broker serves the run, or `asyncrl run` is about to start one again: once there is a summary, it only
    tells the outcome and writes the report.
    """
    return is_served(directory) or (is_supervised(directory) and not directory.summary.exists())


def is_awaited(directory: RunDirectory, *, wall_clock: Callable[[], float] = time.time) -> bool:
    """
    True if something is likely to start a broker within moments: `asyncrl run`, or the manager of a service that
    served the run just now.
    """
    if is_supervised(directory) or directory.supervisor_lock.exists():
        return is_supervised(directory)
    written = [path.stat().st_mtime for path in (directory.ledger, directory.events) if path.exists()]
    return wall_clock() - max(written, default=0.0) < RESTART_S


def _is_held(lock: Path) -> bool:
    try:
        return is_locked(lock)
    except PermissionError:  # The file is another user's, who alone can tell.
        return False


# ── states, evaluations ───────────────────────────────────────────────────────────────────────


class EvaluationEvent(Struct, frozen=True):
    """One evaluation on the held-out prompts: an ``eval.finished`` event."""

    policy_version: int
    accuracy: float
    num_prompts: int
    time_s: float | None
    """Seconds since the run's start."""
    metrics: dict[str, float] = {}
    """Further metrics, such as ``pass@4``; finite numbers only."""
    max_tokens: int = 0
    """Longest completion, where a setting changed it while the run went on; 0 is as the run was started."""

    @property
    def reward(self) -> float | None:
        """Mean reward, which equals the accuracy if rewards are 1 and 0; None if it was not recorded."""
        return self.metrics.get("reward")


def state_of(summary: RunSummary | None, events: Iterable[Event], *, is_served: bool) -> RunState:
    """
    State of a run by its files; `asyncrl.records.states` has the words.

    Args:
        events: Of a run with a summary they may be missing.
        is_served: A broker serves the run.
    """
    if is_served:
        return "paused" if paused_by(events) else "running"
    if summary:
        return summary.status
    end = _end(events)
    return "stopped" if end is None else end.get("status", "finished")


def paused_by(events: Iterable[Event]) -> str:
    """Operator who paused sampling, if nobody has let it go on since; empty if it goes on."""
    last = _last(events, PAUSES)
    return str(last.get("by") or "an operator") if last.get("event") == "sampling.paused" else ""


def cause_of(summary: RunSummary | None, events: Sequence[Event]) -> str:
    """Reason of a failure, or of the last broker's refusal to serve the run; empty without one."""
    cause = str(_last(events, (*ENDS, REFUSED_EVENT)).get("cause") or "")
    if is_refused(events):
        return f"the broker refused the run: {cause}"
    return (summary.cause if summary else "") or cause


def is_refused(events: Iterable[Event]) -> bool:
    """True if the last broker refused to serve the run: an end that is recorded is then not its last word."""
    return _last(events, (*ENDS, REFUSED_EVENT)).get("event") == REFUSED_EVENT


def evaluations_of(events: Iterable[Event]) -> list[EvaluationEvent]:
    """
    Every evaluation, ordered by version; of a version evaluated twice, the later one.

    One in which every prompt failed has measured nothing, and is left out.
    """
    found: dict[int, EvaluationEvent] = {}
    for event in (event for event in events if event.get("event") == "eval.finished"):
        version, accuracy = event.get("policy_version"), finite(event.get("accuracy"))
        prompts = int(finite(event.get("num_prompts")) or 0)
        if isinstance(version, int) and accuracy is not None and prompts:
            numbers = {key: number for key in event if (number := finite(event[key])) is not None}
            metrics = {key: number for key, number in numbers.items() if key not in NOT_METRICS}
            limit = int(numbers.get("max_tokens", 0))
            found[version] = EvaluationEvent(version, accuracy, prompts, numbers.get("time_s"), metrics, limit)
    return [found[version] for version in sorted(found)]


def changed_settings(events: Iterable[Event]) -> dict[str, Any]:
    """Settings that were changed while the run went on, by full key, as they are by now."""
    changed = [event for event in events if event.get("event") == "setting.changed"]
    return {event["key"]: event["value"] for event in changed if "key" in event and "value" in event}


def _end(events: Iterable[Event]) -> Event | None:
    """The ``run.finished`` event; None if the run was resumed after it."""
    last = _last(events, ENDS)
    return last if last.get("event") == "run.finished" else None


def _time_s(event: Event) -> float:
    return finite(event.get("time_s")) or 0.0


def _last(events: Iterable[Event], kinds: Collection[str]) -> Event:
    found = [event for event in events if event.get("event") in kinds]
    return found[-1] if found else {}


# ── overview ──────────────────────────────────────────────────────────────────────────────────


class RunOverview(Struct, frozen=True, kw_only=True):
    """One run, as far as its files could be read."""

    run: str
    """Name of the run directory."""
    status: RunState
    cause: str = ""
    """Reason of a failure, or of a broker's refusal to serve the run."""
    is_refused: bool = False
    """The last broker refused to serve the run."""
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
    held_out_reward: float | None = None
    """Mean reward of the last evaluation; None if it is the accuracy."""
    paused_by: str = ""
    """Operator who paused sampling, also of a run that is over: a resume does not end it; empty without one."""
    checkpoint: str = ""
    """Path of the newest checkpoint; empty without one."""
    no_checkpoint: str = "none"
    """When the first one comes, and what a resume does until then; empty with one."""
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


def overview(path: Path, *, wall_clock: Callable[[], float] = time.time) -> RunOverview:
    """Read a run directory. A file that is missing or damaged leaves its values unset."""
    directory, notes = RunDirectory(path), list[str]()
    summary = _read(directory.read_summary, None, notes)
    line = _read(JsonLines(directory.metrics).last, None, notes) or {}
    is_finished = summary is not None and summary.status == "finished"
    events: list[Event] = [] if is_finished else _read(directory.read_events, [], notes)
    ends = events or list(filter(None, [_read(JsonLines(directory.events).last, None, notes)]))
    evaluations = evaluations_of(events)
    base_accuracy, accuracy, accuracy_failed = accuracies(summary, evaluations)
    reward = summary.held_out_reward if summary else evaluations[-1].reward if evaluations else None
    first = _read(JsonLines(directory.events).first, None, notes) or {}
    began_at = str(first.get("at", "")) or _changed_at(directory.config)
    checkpoints = sorted(directory.checkpoints.glob("step_*/manifest.json"))
    settings = {} if summary and checkpoints else read_settings(directory, notes)
    planned, step = settings.get("run.steps"), summary.steps if summary else int(line.get("step", -1)) + 1
    return RunOverview(
        run=path.resolve().name,
        status=state_of(summary, events, is_served=is_served(directory)),
        cause=cause_of(summary, ends),
        is_refused=is_refused(ends),
        step=step,
        steps=summary.steps_planned if summary else planned if isinstance(planned, int) else None,
        reward=line.get("reward"),
        base_accuracy=base_accuracy,
        accuracy=accuracy,
        accuracy_failed=accuracy_failed,
        held_out_reward=graded_reward(accuracy, reward),
        paused_by=paused_by(events),
        checkpoint=str(checkpoints[-1].parent) if checkpoints else "",
        no_checkpoint="" if checkpoints else no_checkpoint(settings, step, is_finished=is_finished),
        began_at=began_at,
        age_s=wall_clock() - datetime.fromisoformat(began_at).timestamp() if began_at else None,
        wall_s=summary.wall_s if summary else None,
        num_bytes=sum(_sizes(path)),
        metrics=line,
        notes=notes,
    )


def accuracies(summary: RunSummary | None, found: Sequence[EvaluationEvent]) -> tuple[float | None, float | None, int]:
    """
    Held-out accuracy before the first step, that of the last evaluation, and how many failed in the latter; None
    without. From the summary if there is one, else from the evaluations ``found``.
    """
    if summary:
        return summary.base_accuracy, summary.held_out_accuracy, summary.held_out_failed
    if not found:
        return None, None, 0
    base = found[0].accuracy if found[0].policy_version == 0 else None
    return base, found[-1].accuracy, int(found[-1].metrics.get("failed", 0))


def _changed_at(path: Path) -> str:
    try:
        return (
            datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except FileNotFoundError:
        return ""


def _sizes(path: Path) -> Iterator[int]:
    """Space that each file takes on disk, in bytes. Files that vanish meanwhile take none."""
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                yield Path(folder, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue


# ── record ────────────────────────────────────────────────────────────────────────────────────


class SettingChange(Struct, frozen=True):
    """A setting that got another value while the run went on: a ``setting.changed`` event."""

    key: str
    value: Any
    step: int
    """Optimizer steps done before it."""
    time_s: float
    """Seconds since the run's start."""


def _after(step: int) -> str:
    return f"after {counted(step, 'step')}" if step else "before the first step was done"


class Restart(Struct, frozen=True):
    """A moment when a broker was started again: a ``run.resumed`` event."""

    step: int
    """Optimizer steps done before it."""
    time_s: float
    """Seconds since the run's start."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """Config, metrics, events and summary of a run, as far as they could be read."""

    name: str
    config: dict[str, Any]
    """Every value under its full key, such as ``schedule.staleness``."""
    summary: RunSummary | None
    step_history: StepHistory
    """Metrics of its steps."""
    events: list[dict[str, Any]]
    is_served: bool = False
    """A broker of this user on this machine serves the run, or `asyncrl run` is about to start one again."""
    pictured: list[PicturedSample]
    """Samples whose prompts have pictures, for the report."""
    times: list[TimesLine] = []
    """Times of all nodes, in order; read by `RunDirectory.read_times`, because they may have a gigabyte."""
    notes: list[str]
    """One sentence for each file that could not be read."""
    episodes: list[SampledEpisode] = []
    """Some episodes of the last step, for the report."""
    silent_s: float | None = None
    """Seconds from the last change of metrics.jsonl or events.jsonl until they were read; None without either."""

    @property
    def status(self) -> RunState:
        """State of the run; one without an end, of which something was recorded lately, runs on another machine."""
        found = state_of(self.summary, self.events, is_served=self.is_served)
        if found == "stopped" and not self.cause and not self.is_silent:
            return state_of(None, self.events, is_served=True)
        return found

    @property
    def is_over(self) -> bool:
        return self.status in get_args(RunOutcome)

    @property
    def is_silent(self) -> bool:
        """True if nothing was recorded lately, given the length of its steps."""
        step_s = self.measures(RECENT).step_s or 0.0
        return self.silent_s is None or self.silent_s > max(SILENT_S, 5 * step_s)

    @property
    def cause(self) -> str:
        return cause_of(self.summary, self.events)

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return self.summary.steps if self.summary else self.step_history.num_steps

    @property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """One entry per step, in order; of a long run that is followed, some of them, see `StepHistory`."""
        return self.step_history.lines

    @property
    def planned(self) -> int | None:
        """Optimizer steps planned; None if nothing tells."""
        found = self.summary.steps_planned if self.summary else self.config.get("run.steps")
        return found if isinstance(found, int) else None

    @property
    def wall_s(self) -> float | None:
        """Duration of the run, or up to its last recorded step; None if no step was recorded."""
        if self.summary:
            return self.summary.wall_s
        times = self.curve("time_s")
        return times[-1][1] if times else None

    @property
    def live_settings(self) -> dict[str, Any]:
        """Settings that were changed while the run went on, by full key, as they are by now."""
        return changed_settings(self.events)

    def changes(self) -> list[SettingChange]:
        """Settings that were changed while the run went on, in order."""
        return [
            SettingChange(event["key"], event["value"], self.step_history.steps_at(time_s := _time_s(event)), time_s)
            for event in self._changes()
            if "key" in event and "value" in event
        ]

    def history(self, key: str, first: str, form: Callable[[Any], str], *, steps: float = math.inf) -> str:
        """
        A setting that began as ``first``, and what took its place, such as ``2e-4; 1e-4 after 6 steps (9.0 s)``.

        Of a checkpoint of so many ``steps``, what took its place before that.
        """
        later = [
            f"{form(change.value)} {_after(change.step)} ({duration(change.time_s)})"
            for change in self.changes()
            if change.key == key and change.step < steps
        ]
        return "; ".join([first, *later])

    def restarts(self) -> list[Restart]:
        """The times when a broker was started again, in order."""
        times_s = [_time_s(event) for event in self.events if event.get("event") == "run.resumed"]
        return [Restart(self.step_history.steps_at(time_s), time_s) for time_s in times_s]

    @property
    def changed_s(self) -> float:
        """Time of the last change of a setting, in seconds since the run's start; 0 without one."""
        return max(map(_time_s, self._changes()), default=0.0)

    def curve(self, key: str, x_key: str = "step") -> list[tuple[float, float]]:
        """``(x, value)`` of every step that recorded a finite number under both keys."""
        points = ((finite(line.get(x_key)), finite(line.get(key))) for line in self.metrics)
        return [(x, y) for x, y in points if x is not None and y is not None]

    def mean(self, key: str) -> float | None:
        """Mean over all steps, see `StepHistory.mean`."""
        return self.step_history.mean(key)

    def ends(self, key: str) -> Ends | None:
        """Means of a metric over the first and the last steps, see `ends_of`."""
        return ends_of([value for _, value in self.curve(key)])

    def measures(self, newest: int = 0) -> Measures:
        """Pace and staleness of all steps, or of the ``newest`` ones."""
        return self.step_history.measures(newest)

    def evaluations(self) -> list[EvaluationEvent]:
        """Evaluations by version, see `evaluations_of`."""
        return evaluations_of(self.events)

    def accuracies(self) -> tuple[float | None, float | None, int]:
        """Held-out accuracy before the first step and of the last evaluation, see `accuracies`."""
        return accuracies(self.summary, self.evaluations())

    def held_out_rewards(self) -> tuple[float | None, float | None]:
        """Mean held-out reward before the first step and of the last evaluation; None without."""
        found = self.evaluations()
        if not found:
            return None, None
        return (found[0].reward if found[0].policy_version == 0 else None), found[-1].reward

    def shared_prompts(self) -> tuple[int, int]:
        """Number of held-out prompts that were trained on, and of all; zeros if there were none."""
        last: Event = next((event for event in reversed(self.events) if event.get("event") == SHARED_EVENT), {})
        return int(last.get("num_shared") or 0), int(last.get("num_held_out") or 0)

    def _changes(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == "setting.changed"]


def read_run(path: Path, *, wall_clock: Callable[[], float] = time.time) -> RunRecord:
    """Read a run directory, or what a trainer's machine has of one; raises `ConfigError` if ``path`` is neither."""
    if not path.is_dir():
        raise ConfigError(f"no such run: {path} is not a directory{did_you_mean(path, is_run)}")
    if find_runs(path) or (node_folder(path) and not RunDirectory(path).checkpoints.is_dir()):
        require_run(path)
    directory, notes = RunDirectory(path), list[str]()
    return RunRecord(
        name=path.resolve().name,
        config=read_settings(directory, notes),
        summary=_read(directory.read_summary, None, notes),
        step_history=StepHistory(_read(directory.read_metrics, [], notes, "metrics.jsonl is missing or empty")),
        events=_read(directory.read_events, [], notes, "events.jsonl is missing or empty"),
        is_served=is_running(directory),
        pictured=_read(partial(read_pictured_samples, directory.samples), [], notes),
        episodes=_read(partial(read_first_episodes, directory.samples), [], notes),
        silent_s=silent_s(directory, wall_clock),
        notes=notes,
    )


def silent_s(directory: RunDirectory, wall_clock: Callable[[], float] = time.time) -> float | None:
    """Seconds since metrics.jsonl or events.jsonl changed; None if there is neither."""
    changed_s = [path.stat().st_mtime for path in (directory.metrics, directory.events) if path.exists()]
    return max(0.0, wall_clock() - max(changed_s)) if changed_s else None


def read_settings(directory: RunDirectory, notes: list[str]) -> dict[str, Any]:
    """Every value of config.toml under its full key; a note if it is missing or cannot be read."""
    try:
        return dict(leaves(tomllib.loads(directory.config.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        notes.append("config.toml is missing")
    except (OSError, ValueError) as error:
        notes.append(f"config.toml cannot be read: {error}")
    return {}


def _read(read: Callable[[], T], default: T, notes: list[str], missing: str = "") -> T:
    """Content of a file; ``default`` and a note if it is damaged, and the note ``missing`` if there is nothing."""
    try:
        found = read()
    except LedgerError as error:
        notes.append(str(error))
        return default
    if not found and missing:
        notes.append(missing)
    return found
