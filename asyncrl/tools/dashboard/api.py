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
    GET api/runs/0/newest                         the newest of them
    GET api/runs/0/excerpts?split=&file=&rows=    beginnings of texts
    GET api/runs/0/group?split=&file=&group=      every sample of a group, whole
    GET api/runs/0/picture?split=&file=&group=&number=
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.json_lines import JsonLines
from asyncrl.records.history import MOST_LINES, EventHistory, StepHistory
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import RunRecord, find_runs, is_running, labels, read_settings, require_run, silent_s
from asyncrl.records.times import KINDS, Kind, kind_of
from asyncrl.tools.dashboard import cluster_view, comparison, overview, sample_index, sample_view, timeline
from asyncrl.tools.dashboard.cluster_view import EventQuery
from asyncrl.tools.dashboard.query import Query, RefusedAnswer
from asyncrl.tools.dashboard.sample_index import NEWEST_STEPS, SampleIndex, SampleQuery
from asyncrl.tools.dashboard.sample_view import TokenTexts
from asyncrl.tools.dashboard.time_bands import TimesFile, bands_of_metrics
from asyncrl.tools.dashboard.timeline import TimelineQuery

# ── followed run ───────────────────────────────────────────────────────────────────────────────
# A run directory that may still grow, read on from where the last reading ended.
#
#     metrics.jsonl, events.jsonl ─ new lines ─┐
#     config.toml, summary.json ─ if changed ──┴─▶ record: RunRecord      times.jsonl ─▶ times      samples/ ─▶ samples
#
# A damaged or missing file becomes a note, as in `read_run`. What is kept does not grow with the run, see
# `asyncrl.records.history`, but for the index of all samples while somebody looks at their page.

T = TypeVar("T")
Signature = tuple[int, int] | None
"""Time of the last change in nanoseconds, and size in bytes; None for a file that does not exist."""


class FollowedRun:
    """
    One run. Not safe for several threads at once.

    Raises `ConfigError` if ``path`` is not a directory, or one of runs.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float] = time.time) -> None:
        if not path.is_dir() or find_runs(path):
            require_run(path)
        self.directory = directory = RunDirectory(path)
        self.name = path.resolve().name
        self.revision = 0
        """Number of changes noticed."""
        self.rewrites = 0
        """
        Times that a step was recorded again, steps were left out or a file was replaced, so that what was read before
        no longer holds.
        """
        self.num_lost = 0
        """Nodes that are gone and not back."""
        self.samples = SampleIndex(directory.samples)
        self.newest = SampleIndex(directory.samples, newest=NEWEST_STEPS)
        self.times = TimesFile(directory.times)
        self._wall_clock = wall_clock
        self._history = StepHistory(most=MOST_LINES)
        self._events = EventHistory()
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
        """The run as it was read, without samples, until the next `refresh`."""
        return RunRecord(
            name=self.name,
            config=self._config,
            summary=self._summary,
            step_history=self._history,
            events=self._events.events,
            is_served=is_running(self.directory),
            pictured=[],
            silent_s=silent_s(self.directory, self._wall_clock),
            notes=list(self._notes.values()),
        )

    def every_event(self) -> list[dict[str, Any]]:
        """Every event, with those that the record leaves out: read anew, as far as the file can be read."""
        if self._events.is_whole:
            return self._events.events
        found = []
        with suppress(LedgerError):  # `refresh` has noted it.
            for event, _ in JsonLines(self.directory.events).since(0):
                found.append(event)
        return found

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
        metrics = self.directory.metrics
        if self._is_cut(metrics):
            self._history = StepHistory(most=MOST_LINES)
        history, stride, is_repeated = self._history, self._history.stride, False
        for line in self._new_lines(metrics):
            if isinstance(step := line.get("step"), int):
                is_repeated |= bool(history.lines) and step <= history.lines[-1]["step"]
                if not is_repeated:
                    history.add(line)
        if is_repeated:  # Sums take nothing back.
            self._history = StepHistory(self.directory.each_step(self._offsets[metrics]), most=MOST_LINES)
        self.rewrites += is_repeated or history.stride > stride

    def _read_events(self) -> None:
        if self._is_cut(self.directory.events):
            self._events = EventHistory()
        for event in self._new_lines(self.directory.events):
            self._events.add(event)
        self.num_lost = len(cluster_view.gone(self._events.events))

    def _new_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        self._notes.pop(path.name, None)
        try:
            for line, end in JsonLines(path).since(self._offsets[path]):
                self._offsets[path] = end
                yield line
        except LedgerError as error:
            self._notes[path.name] = str(error)
        if not self._offsets[path]:
            self._notes.setdefault(path.name, f"{path.name} is missing or empty")

    def _is_cut(self, path: Path) -> bool:
        """True if the file was replaced, or cut short; it is then read from its beginning."""
        seen = self._seen[path]
        if self._offsets[path] <= (seen[1] if seen else 0):
            return False
        self._offsets[path] = 0
        self.rewrites += 1
        return True

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
        ConfigError: There is no run, or one is not a directory, or one of runs.
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
            "newest": self._newest_samples,
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
        columns, every = cluster_view.columns(run.record, start), run.record.step_history.stride
        return {"start": start, "rewrites": run.rewrites, "every": every, "columns": columns}

    def _histograms(self, run: FollowedRun, _: Query) -> Any:
        run.newest.advance(SHORT_S)
        return cluster_view.histograms(run.newest)

    def _cluster(self, run: FollowedRun, _: Query) -> Any:
        run.times.advance(SHORT_S)
        run.newest.advance(SHORT_S)
        bands = run.times.bands
        record = run.record
        nodes = cluster_view.nodes(record.events, bands, run.newest.newest_version(), is_over=record.is_over)
        return {
            "is_partial": run.times.is_behind or run.newest.num_waiting > 0,
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
            **timeline.timeline(bands, run.every_event(), wanted),
        }

    def _events(self, run: FollowedRun, query: Query) -> Any:
        wanted = EventQuery(kind=query.text("kind"), node=query.text("node"), text=query.text("text"))
        if group := query.text("group"):
            return {"events": cluster_view.members(run.every_event(), wanted, group)}
        events = run.every_event()
        return {
            "sentence": overview.events_sentence(run.record),
            "groups": cluster_view.groups(events, wanted),
            "kinds": sorted({str(event.get("event")) for event in events}),
            "num_events": len(events),
        }

    def _samples(self, run: FollowedRun, query: Query) -> Any:
        wanted = SampleQuery.read(query)
        run.samples.advance()
        page = msgspec.structs.asdict(sample_index.page(run.samples, wanted))
        return {"sentence": overview.samples_sentence(run.record), **page}

    def _newest_samples(self, run: FollowedRun, _: Query) -> Any:
        run.newest.advance(SHORT_S)
        return {"rows": sample_index.page(run.newest, SampleQuery(ranges={})).rows}

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
