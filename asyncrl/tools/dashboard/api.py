"""
Answers of the dashboard about its runs, as JSON. Blocking: the application calls it in a thread, one call at a time.

    GET api/runs                                  names and revisions
    GET api/comparison                            what differs between the runs, and which is best
    GET api/runs/0/state                          what it does, and whether that is well: what every page begins with
    GET api/runs/0/overview                       headline numbers, evaluations, waits
    GET api/runs/0/curves?start=40&rewrites=0     metrics of the steps from the 41st on
    GET api/runs/0/histograms                     of the newest samples
    GET api/runs/0/cluster                        nodes
    GET api/runs/0/timeline?start=10&end=20       activities of nodes over time
    GET api/runs/0/events?kind=node.lost          events by cause; with group=ID those of one
    GET api/runs/0/settings                       every setting
    GET api/runs/0/samples?reward_min=1           a page of samples by their numbers
    GET api/runs/0/excerpts?split=&file=&rows=    beginnings of texts
    GET api/runs/0/group?split=&file=&group=      every sample of a group, whole
    GET api/runs/0/picture?split=&file=&group=&number=
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.json_lines import JsonLines
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import RunRecord, is_run, is_running, labels, read_settings, silent_s
from asyncrl.records.times import KINDS, Kind, kind_of
from asyncrl.similar_path import did_you_mean
from asyncrl.tools.dashboard import cluster_view, comparison, overview, sample_index, sample_view, timeline
from asyncrl.tools.dashboard.cluster_view import EventQuery
from asyncrl.tools.dashboard.query import Query, RefusedAnswer
from asyncrl.tools.dashboard.sample_index import SampleIndex, SampleQuery
from asyncrl.tools.dashboard.sample_view import TokenTexts
from asyncrl.tools.dashboard.time_bands import TimesFile, bands_of_metrics
from asyncrl.tools.dashboard.timeline import TimelineQuery

# ── followed run ───────────────────────────────────────────────────────────────────────────────
# A run directory that may still grow, read on from where the last reading ended.
#
#     metrics.jsonl, events.jsonl ─ new lines ─┐
#     config.toml, summary.json ─ if changed ──┴─▶ record: RunRecord      times.jsonl ─▶ times      samples/ ─▶ samples
#
# A damaged or missing file becomes a note, as in `read_run`.

T = TypeVar("T")
Signature = tuple[int, int] | None
"""Time of the last change in nanoseconds, and size in bytes; None for a file that does not exist."""


class FollowedRun:
    """
    One run. Not safe for several threads at once.

    Raises `ConfigError` if ``path`` is not a directory.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float] = time.time) -> None:
        if not path.is_dir():
            raise ConfigError(f"no such run: {path} is not a directory{did_you_mean(path, is_run)}")
        self.directory = directory = RunDirectory(path)
        self.name = path.resolve().name
        self.revision = 0
        """Number of changes noticed."""
        self.rewrites = 0
        """Times that a step was recorded again or a file was replaced, so that what was read before no longer holds."""
        self.events: list[dict[str, Any]] = []
        self.num_lost = 0
        """Nodes that are gone and not back."""
        self.samples = SampleIndex(directory.samples)
        self.times = TimesFile(directory.times)
        self._wall_clock = wall_clock
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
            is_served=is_running(self.directory),
            pictured=[],
            silent_s=silent_s(self.directory, self._wall_clock),
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
        self._summary = self._noted(self.directory.summary, self.directory.read_summary, None)

    def _read_metrics(self) -> None:
        for line in self._new_lines(self.directory.metrics, self._steps.clear):
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
        self.num_lost = len(cluster_view.gone(before))

    def _new_lines(self, path: Path, forget: Callable[[], None]) -> list[dict[str, Any]]:
        seen = self._seen[path]
        if self._offsets[path] > (seen[1] if seen else 0):  # replaced, or cut short
            self._offsets[path] = 0
            self.rewrites += 1
            forget()
        found: list[tuple[dict[str, Any], int]] = self._noted(
            path, lambda: JsonLines(path).since(self._offsets[path]), []
        )
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


def kinds(activities: Iterable[str]) -> dict[str, Kind]:
    """Kind of each activity, in the order in which kinds are drawn."""
    return {activity: kind_of(activity) for activity in sorted(activities, key=lambda one: KINDS.index(kind_of(one)))}


# ── answers ────────────────────────────────────────────────────────────────────────────────────

MAX_RUNS = 64
SHORT_S = 0.05
"""Seconds to read more of large files before an answer that is wanted at once; ``is_partial`` tells to ask again."""
JSON = "application/json"
Content = tuple[str, bytes]
"""Media type and body."""


class Api:
    """
    Answers the requests of a dashboard's pages from the files of its runs.

    Args:
        paths: Run directories. They are put `in_order`, and a run is named by its place in it.
        wall_clock: Gives seconds since 1970.

    Raises:
        ConfigError: There is no run, or one is not a directory.
    """

    def __init__(self, paths: Sequence[Path], wall_clock: Callable[[], float] = time.time) -> None:
        if not 0 < len(paths) <= MAX_RUNS:
            raise ConfigError(f"a dashboard shows 1 to {MAX_RUNS} runs, got {len(paths)}")
        followed = [FollowedRun(path, wall_clock) for path in paths]
        for run in followed:
            run.refresh()
        ordered, names = comparison.in_order([run.record for run in followed]), labels(paths)
        self.runs = [followed[place] for place in ordered]
        self._labels = [names[place] for place in ordered]
        self._views: dict[str, Callable[[FollowedRun, Query], Any]] = {
            "state": self._state,
            "overview": self._overview,
            "curves": self._curves,
            "histograms": self._histograms,
            "cluster": self._cluster,
            "timeline": self._timeline,
            "events": self._events,
            "settings": lambda run, _: {
                "sentence": overview.settings_sentence(run.record),
                "settings": cluster_view.settings(run.record),
            },
            "samples": self._samples,
            "excerpts": self._excerpts,
            "group": self._group,
        }

    def answer(self, parts: Sequence[str], query: Query) -> Content:
        """
        The answer at a path below ``api``.

        Raises:
            Refused: There is nothing at the path, or the query is not valid.
        """
        try:
            match parts:
                case ["runs"]:
                    return JSON, msgspec.json.encode({"runs": self.revisions()})
                case ["comparison"]:
                    return JSON, msgspec.json.encode(self._comparison())
                case ["runs", number, "picture"]:
                    return self._picture(self._run(number), query)
                case ["runs", number, name] if name in self._views:
                    return JSON, msgspec.json.encode(self._views[name](self._run(number), query))
        except LedgerError as error:
            raise RefusedAnswer(409, str(error)) from error
        raise RefusedAnswer(404, "there is nothing at this address")

    def revisions(self) -> list[dict[str, Any]]:
        """Name, state and revision of each run, after reading what is new."""
        for run in self.runs:
            run.refresh()
        return [
            {
                "name": label,
                "revision": run.revision,
                "status": run.record.status,
                "num_lost": 0 if run.record.is_over else run.num_lost,
                "is_over": run.record.summary is not None,
            }
            for label, run in zip(self._labels, self.runs, strict=True)
        ]

    def _comparison(self) -> comparison.RunComparison:
        for run in self.runs:
            run.refresh()
        named = zip(self._labels, self.runs, strict=True)
        return comparison.compare([msgspec.structs.replace(run.record, name=label) for label, run in named])

    def _run(self, number: str) -> FollowedRun:
        if not (number.isascii() and number.isdigit() and len(number) < 4 and int(number) < len(self.runs)):
            raise RefusedAnswer(404, f"there is no run {number[:20]!r}; there are {len(self.runs)}, counted from 0")
        run = self.runs[int(number)]
        run.refresh()
        return run

    def _state(self, run: FollowedRun, _: Query) -> Any:
        run.times.advance(SHORT_S)
        record = run.record
        line = overview.state_line(record, run.times.bands.by_role())
        found = {"is_partial": run.times.is_behind, "steps": record.steps, "planned": record.planned, "word": line.word}
        return found | msgspec.structs.asdict(line)

    def _overview(self, run: FollowedRun, _: Query) -> Any:
        run.times.advance(SHORT_S)
        found = overview.overview(run.record, run.times.bands.by_role())
        activities = [activity for shares in found["waits"].values() for activity in shares]
        return found | {"is_partial": run.times.is_behind, "kinds": kinds(activities)}

    def _curves(self, run: FollowedRun, query: Query) -> Any:
        start = query.count("start", 0, most=10**9)
        if query.count("rewrites", 0, most=10**9) != run.rewrites or start > len(run.record.metrics):
            start = 0
        return {"start": start, "rewrites": run.rewrites, "columns": cluster_view.columns(run.record, start)}

    def _histograms(self, run: FollowedRun, _: Query) -> Any:
        run.samples.advance(SHORT_S)
        return cluster_view.histograms(run.samples)

    def _cluster(self, run: FollowedRun, _: Query) -> Any:
        run.times.advance(SHORT_S)
        run.samples.advance(SHORT_S)
        bands = run.times.bands
        record = run.record
        nodes = cluster_view.nodes(run.events, bands, run.samples.newest_version(), is_over=record.is_over)
        return {
            "is_partial": run.times.is_behind or run.samples.num_waiting > 0,
            "sentence": overview.cluster_sentence(record, nodes),
            "nodes": nodes,
            "has_times": bool(bands.nodes),
            "kinds": kinds(bands.activities),
        }

    def _timeline(self, run: FollowedRun, query: Query) -> Any:
        wanted = TimelineQuery.read(query)
        run.times.advance()
        bands = run.times.bands if run.times.bands.nodes else bands_of_metrics(run.record.metrics)
        return {
            "sentence": overview.timeline_sentence(run.record, run.times.bands.by_role()),
            "source": "times.jsonl" if run.times.bands.nodes else "metrics.jsonl",
            "is_partial": run.times.is_behind,
            "read": round(run.times.read_share, 3),
            "num_damaged": run.times.num_damaged,
            "kinds": kinds(bands.activities),
            **timeline.timeline(bands, run.events, wanted),
        }

    def _events(self, run: FollowedRun, query: Query) -> Any:
        wanted = EventQuery(kind=query.text("kind"), node=query.text("node"), text=query.text("text"))
        if group := query.text("group"):
            return {"events": cluster_view.members(run.events, wanted, group)}
        return {
            "sentence": overview.events_sentence(run.record),
            "groups": cluster_view.groups(run.events, wanted),
            "kinds": sorted({str(event.get("event")) for event in run.events}),
            "num_events": len(run.events),
        }

    def _samples(self, run: FollowedRun, query: Query) -> Any:
        wanted = SampleQuery.read(query)
        run.samples.advance()
        page = msgspec.structs.asdict(sample_index.page(run.samples, wanted))
        return {"sentence": overview.samples_sentence(run.record), **page}

    def _excerpts(self, run: FollowedRun, query: Query) -> Any:
        rows = query.text("rows").split(",")
        if not all(row.isascii() and row.isdigit() and len(row) < 10 for row in rows):
            raise RefusedAnswer(400, "rows is not a list of whole numbers, such as 0,3,17")
        return {"excerpts": sample_view.excerpts(self._sample_file(run, query), [int(row) for row in rows])}

    def _group(self, run: FollowedRun, query: Query) -> Any:
        group = query.count("group", 0, most=2**62)
        return {"samples": sample_view.group(self._sample_file(run, query), group, run.texts)}

    def _picture(self, run: FollowedRun, query: Query) -> Content:
        group, number = query.count("group", 0, most=2**62), query.count("number", 0, most=1000)
        content, kind = sample_view.picture(self._sample_file(run, query), group, number)
        return kind, content

    def _sample_file(self, run: FollowedRun, query: Query) -> Path:
        split = query.choice("split", ("train", "held_out"))
        return sample_view.sample_file(run.directory.samples, split, query.text("file"))
