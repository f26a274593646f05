"""
The report: one self-contained HTML file about one run, or about several runs side by side.

    header      status, and the cause of a failure
    numbers     results, cost, and the settings that matter or differ
    curves      reward, accuracy, length, staleness, throughput, waiting, ...
    pictures    of prompts, with a completion
    episodes    turn by turn
    events      nodes lost, groups dropped, failures
    config      every value, hidden until clicked
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.errors import ConfigError
from asyncrl.files.output import output
from asyncrl.observe.formatting import UNKNOWN
from asyncrl.observe.report import page
from asyncrl.observe.report.curves import draw
from asyncrl.observe.report.episodes import episodes
from asyncrl.observe.report.evaluation_charts import evaluation_charts
from asyncrl.observe.report.headline import headline
from asyncrl.observe.report.page import Markup
from asyncrl.observe.report.pictures import pictures
from asyncrl.observe.run_labels import labels
from asyncrl.observe.run_record import RunRecord, read_run

ROUTINE = {
    "run.started", "step.repeated", "node.joined", "node.ready", "node.left",
    "version.live", "checkpoint.written", "eval.finished", "images.sent",
}  # fmt: skip
"""Events of normal operation, which are not listed. Any other kind is, known to this module or not."""

SHOWN = 200
"""Number of events listed per run: the newest."""

STATUS = {"finished": "✓ finished", "failed": "✗ failed", "interrupted": "⏸ interrupted", "open": "… no end recorded"}

SETTINGS = (
    "model.path",
    "data.train",
    "run.seed",
    "schedule.groups_per_step",
    "schedule.group_size",
    "schedule.staleness",
    "schedule.steps_per_publish",
    "schedule.partial_rollout",
    "sampling.max_tokens",
    "sampling.temperature",
    "rollout.replicas",
    "algorithm.advantage",
    "algorithm.loss",
    "algorithm.kl_coef",
    "trainer.lr",
)


def write_report(runs: Sequence[Path], out: Path) -> None:
    """
    Write the report about ``runs`` to ``out``, replacing it atomically; several runs share the charts.

    A run that failed or still continues is shown up to its last record; missing files are named.
    Raises `ConfigError` if ``runs`` is empty, one of them is not a directory, or ``out`` cannot be written.
    """
    if not runs:
        raise ConfigError("a report needs at least one run directory")
    records = [read_run(path) for path in runs]
    content = render([replace(record, name=name) for record, name in zip(records, labels(runs), strict=True)])
    with output(out) as unfinished:
        unfinished.write_text(content, encoding="utf-8")


def render(records: Sequence[RunRecord]) -> str:
    charts, empty = draw(records)
    alone = len(records) == 1
    title = ", ".join(record.name for record in records)
    parts = [
        page.text(title, "h1"),
        *(part for record in records for part in _header(record, alone=alone)),
        *_numbers(records),
        page.text("Curves", "h2"),
        page.row([Markup(chart) for chart in [*charts, *evaluation_charts(records)]], "div", "charts"),
    ]
    if empty:
        parts.append(page.text(f"Not recorded: {'; '.join(empty)}.", style="quiet"))
    parts += [*pictures(records), *episodes(records)]
    parts += [page.text("Events", "h2"), *(part for record in records for part in _events(record, alone=alone))]
    parts += [page.text("Config", "h2"), *(_config(record) for record in records if record.config)]
    return page.page(f"asyncrl: {title}", parts)


def _header(record: RunRecord, *, alone: bool) -> Iterator[Markup]:
    name = [] if alone else [page.text(record.name, "strong")]
    notes = [page.text("; ".join(record.notes), "span", "quiet")] if record.notes else []
    yield page.row([*name, page.text(STATUS[record.status], "span", f"pill {record.status}"), *notes])
    if record.cause:
        yield page.text(record.cause, style="cause")


def _numbers(records: Sequence[RunRecord]) -> Iterator[Markup]:
    columns = [headline(record) for record in records]
    head = ["", *(record.name for record in records)] if len(records) > 1 else []
    numbers = page.table(head, [[label, *(column[label] for column in columns)] for label in columns[0]])
    yield page.text("Numbers", "h2")
    yield page.row([numbers, _settings(records)], "div", "side")


def _settings(records: Sequence[RunRecord]) -> Markup:
    """The `SETTINGS` of a single run; the settings that differ between several."""
    if len(records) == 1:
        config = records[0].config
        return page.table([], [[key, _plain(config[key])] for key in SETTINGS if key in config])
    keys = dict.fromkeys(key for record in records for key in record.config if key != "run.name")
    lines = [[key, *(_plain(record.config.get(key)) for record in records)] for key in keys]
    different = [line for line in lines if len(set(line[1:])) > 1]
    if not different:
        return page.text("The runs have the same config.", style="quiet")
    return page.table(["differing settings", *(record.name for record in records)], different)


def _events(record: RunRecord, *, alone: bool) -> Iterator[Markup]:
    notable = [event for event in record.events if _is_notable(event)]
    many = f"{len(notable)} notable events" if notable else "no notable events"
    last = f"; the last {SHOWN}:" if len(notable) > SHOWN else ""
    yield page.text(f"{'' if alone else f'{record.name}: '}{many}{last}", style="quiet")
    if notable:
        started = record.events[0].get("at")
        yield page.table(
            ["event", "time since start", "details"],
            [
                [str(event.get("event")), _after(event.get("at"), started), _details(event)]
                for event in notable[-SHOWN:]
            ],
        )


def _is_notable(event: dict[str, Any]) -> bool:
    kind = event.get("event")
    return kind not in ROUTINE and not (kind == "run.finished" and event.get("status") == "finished")


def _after(at: Any, started: Any) -> str:
    try:
        return f"{(datetime.fromisoformat(at) - datetime.fromisoformat(started)).total_seconds():.1f} s"
    except (TypeError, ValueError):
        return UNKNOWN


def _details(event: dict[str, Any]) -> str:
    return "   ".join(f"{key}={_plain(value)}" for key, value in event.items() if key not in ("event", "at"))


def _config(record: RunRecord) -> Markup:
    everything = page.table([], [[key, _plain(value)] for key, value in record.config.items()])
    return page.folded(f"Every value of {record.name}", everything)


def _plain(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
