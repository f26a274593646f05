"""
The report: one self-contained HTML file about one run, or about several runs side by side.

    header      status; the state of the run, as on the dashboard; of several, how they differ; when this was written
    curves      reward, accuracy, ...
    numbers     results, cost, and the settings that matter or differ
    curves      staleness, throughput, waiting, ...
    pictures    of prompts, with a completion
    episodes    turn by turn
    events      nodes lost, groups dropped, failures
    config      every value, hidden until clicked
"""

import math
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NewType

import msgspec
from msgspec.structs import replace

from asyncrl.errors import ConfigError
from asyncrl.files.access import as_folder
from asyncrl.files.atomic import output
from asyncrl.records import formatting
from asyncrl.records.episode_view import summary, views
from asyncrl.records.evaluation_metrics import accuracy_by_source, failed_note, multi_sample_metrics, pass_curve
from asyncrl.records.events import news, weighed
from asyncrl.records.formatting import UNKNOWN, nth
from asyncrl.records.measures import Ends, finite
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunRecord, labels, read_run
from asyncrl.records.samples import PicturedSample, SampledEpisode
from asyncrl.tools.dashboard.cluster_view import MATTERS, gone, short_cause
from asyncrl.tools.dashboard.comparison import RunComparison, compare, in_order
from asyncrl.tools.dashboard.overview import state_line
from asyncrl.tools.dashboard.time_bands import TimesFile
from asyncrl.tools.report import charts
from asyncrl.tools.report.charts import Point, Series, draw, line_chart, plain, run_label

# ── evaluation charts ─────────────────────────────────────────────────────────────────────────
# Charts of evaluations with several completions per prompt, or with several data sources.
#
#   eval.finished  accuracy 0.41  avg@8 0.41  pass@1 0.41  pass@2 0.55  ...  pass@8 0.78  maj@8 0.52  math/avg@8 0.30
#                                   └── one curve over m, first and last version ──┘       └─ over versions, by source


def evaluation_charts(records: Sequence[RunRecord]) -> list[str]:
    """The charts that have data; none where accuracy is the only metric."""
    found = (
        _pass_curves(records),
        _chart("Held-out, by how completions are counted", records, multi_sample_metrics),
        _chart("Held-out accuracy by data source", records, accuracy_by_source),
    )
    return [chart for chart in found if chart]


def _pass_curves(records: Sequence[RunRecord]) -> str | None:
    """Training that only sharpens the policy raises small m; training that solves new prompts raises large m too."""
    series = []
    for run, record in enumerate(records):
        found = [evaluation for evaluation in record.evaluations() if len(pass_curve(evaluation.metrics)) > 1]
        for place, evaluation in enumerate([*found[:1], *found[1:][-1:]]):
            label = run_label(records, record, f"version {evaluation.policy_version}")
            points = pass_curve(evaluation.metrics)
            series.append(Series(points=points, label=label, colour=run, dashed=place == 0, dots=True))
    title = "Held-out pass@m, right at least once in m completions"
    return line_chart(title, series, x_label="completions (m)", zero=True, percent=True) if series else None


def _chart(
    title: str, records: Sequence[RunRecord], values_of: Callable[[Mapping[str, float]], dict[str, float]]
) -> str | None:
    series = []
    for run, record in enumerate(records):
        lines: dict[str, list[Point]] = {}
        for evaluation in record.evaluations():
            for name, value in values_of(evaluation.metrics).items():
                lines.setdefault(name, []).append((evaluation.policy_version, value))
        for place, (name, points) in enumerate(lines.items()):
            colour = run if len(records) > 1 else place
            label = run_label(records, record, name)
            series.append(Series(points=points, label=label, colour=colour, dashed=place > 0, dots=True))
    return line_chart(title, series, x_label="policy version", zero=True, percent=True) if series else None


# ── headline ──────────────────────────────────────────────────────────────────────────────────
# The most important numbers of a run.


def headline(record: RunRecord) -> dict[str, str]:
    """Results and cost of a run, label to text. Every run has the same labels in the same order."""
    summary, evaluations = record.summary, record.evaluations()
    rewards = record.ends("reward")
    pace = record.measures()
    tokens = pace.tokens if record.metrics or not summary else summary.trained_tokens
    base, last, _ = record.accuracies()
    base_reward, last_reward = record.held_out_rewards()
    last_metrics = evaluations[-1].metrics if evaluations else {}
    failed = failed_note(last_metrics.get("failed", 0))
    gap = summary.logprob_gap_mean if summary else record.mean("logprob_gap_mean")
    highest_gap = summary.logprob_gap_max if summary else _highest(record, "logprob_gap_max")
    kinds = Counter(str(event.get("event")) for event in record.events)
    return {
        "steps": _steps(record),
        "wall time": _text(record.wall_s, formatting.duration),
        "held-out accuracy before": _text(base, formatting.share),
        "held-out accuracy after": _text(last, formatting.share),
        "held-out reward before": _text(base_reward),
        "held-out reward after": _text(last_reward),
        "held-out, of several completions": _shares(multi_sample_metrics(last_metrics)),
        "held-out, by data source": _shares(accuracy_by_source(last_metrics)),
        "held-out prompts": f"{evaluations[-1].num_prompts}{failed}" if evaluations else UNKNOWN,
        "training reward at first": _with_span(rewards, "first"),
        "training reward at last": _with_span(rewards, "last"),
        "trained tokens": formatting.count(tokens),
        "time of the steps": _text(pace.seconds or None, formatting.duration),
        "trained tokens / s": _text(pace.tokens_per_s, formatting.count),
        "a step, mean": _text(pace.step_s, "{:.3g} s".format),
        "trainer waiting": _text(pace.wait_trainer, formatting.share),
        "rollouts waiting": _text(pace.wait_rollout, formatting.share),
        "staleness, mean": _text(pace.staleness_mean),
        "staleness, max": str(pace.staleness_max) if pace.staleness_mean is not None else UNKNOWN,
        "pause per publish": _text(record.mean("pause_s"), lambda seconds: f"{1000 * seconds:.3g} ms"),
        "log-prob gap, mean": _text(gap),
        "log-prob gap, max": _text(highest_gap),
        "nodes lost": str(kinds["node.lost"]),
        "processes of asyncrl run that died": str(kinds["node.exited"]),
        "groups dropped": str(kinds["group.dropped"]),
    }


def _highest(record: RunRecord, key: str) -> float | None:
    return max((value for _, value in record.curve(key)), default=None)


def _with_span(found: Ends | None, which: Literal["first", "last"]) -> str:
    return UNKNOWN if found is None else f"{getattr(found, which):.3g} ({found.told(which)})"


def _steps(record: RunRecord) -> str:
    return f"{record.steps} of {record.planned}" if record.planned else str(record.steps)


def _text(value: float | None, form: Callable[[float], str] = "{:.3g}".format) -> str:
    return UNKNOWN if value is None else form(value)


def _shares(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {formatting.share(value)}" for name, value in values.items()) or UNKNOWN


# ── page ──────────────────────────────────────────────────────────────────────────────────────
# A self-contained HTML page: no scripts, and no fonts or images from elsewhere.
#
# Functions here escape plain text; only `Markup` is inserted unchanged, so a completion, a config value or an error
# message can never inject HTML.

Markup = NewType("Markup", str)
"""HTML built by this module or `charts`."""

PICTURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}
"""Formats of pictures that a page may hold, by the first bytes of a file. None of them can hold a script."""

STYLE = """
:root { color-scheme: light dark; --panel: #fff; --edge: #1a202940; }
body { font: 14px/1.5 system-ui, sans-serif; color: #1c1f23; background: #f6f7f9; margin: 0; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 15px; margin: 30px 0 10px; }
p { margin: 6px 0; }
.quiet { color: #5b626c; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 10px; font-size: 12px; font-weight: 600; }
.finished { background: #d9f0e6; color: #05573f; }
.failed { background: #fbdedb; color: #8f1d12; }
.running { background: #e3ebf7; color: #1d4477; }
.stopped, .paused, .interrupted { background: #f5e8cf; color: #5f4200; }
.sentence { overflow-wrap: anywhere; }
.judged { display: block; }
.well { color: #1c7c43; }
.note { color: #8a5a00; }
.bad { color: #c0362c; }
.side { display: flex; flex-wrap: wrap; gap: 14px; align-items: flex-start; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); gap: 14px; }
.side > *, .scroll {
  max-width: 100%; overflow-x: auto;
  background: linear-gradient(to right, var(--panel) 40%, transparent) left / 60px 100% no-repeat local,
    linear-gradient(to left, var(--panel) 40%, transparent) right / 60px 100% no-repeat local,
    linear-gradient(to left, var(--edge), transparent) right / 26px 100% no-repeat scroll;
  background-color: var(--panel);
}
.side > table { display: block; }
.runs tr > :first-child { position: sticky; left: 0; background: var(--panel); }
table { border-collapse: collapse; border: 1px solid #e3e6ea; }
th, td { text-align: left; padding: 4px 14px; border-bottom: 1px solid #eceef1; vertical-align: top; }
th { font-weight: 600; }
tbody th { font-weight: 400; color: #5b626c; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
img { max-width: 100%; max-height: 240px; background: #fff; border: 1px solid #e3e6ea; }
details { margin: 10px 0; }
.turns td { white-space: pre-wrap; }
summary { cursor: pointer; color: #1d4477; }
@media (max-width: 500px) {
  main { padding: 10px 10px 40px; }
  th, td { padding: 4px 8px; }
  .side td { min-width: 76px; }
}
"""
DARK = """
:root { --panel: #1a1e25; --edge: #000000cc; }
body { color: #dfe4ea; background: #12151a; }
.quiet, tbody th { color: #8c97a5; }
.well { color: #58c287; }
.note { color: #e0a53c; }
.bad { color: #f0776d; }
.finished { background: #173a2c; color: #7fd6ab; }
.failed { background: #44211e; color: #f59a92; }
.running { background: #1d2d47; color: #9cc1f7; }
.stopped, .paused, .interrupted { background: #4a3a17; color: #f0cf8a; }
table { border-color: #2b313b; }
th, td { border-color: #262c35; }
img { border-color: #2b313b; }
summary { color: #6ba1ff; }
"""
"""Rules for readers who prefer a dark page."""


def text(content: str, tag: str = "p", style: str = "") -> Markup:
    """A ``<tag>`` element with ``content``, escaped; ``style`` is its CSS class."""
    return row([Markup(plain(content))], tag, style)


def marked(content: str, tag: str) -> Markup:
    """A ``<tag>`` element with ``content``, escaped, of which what stands between backticks is code."""
    parts = map(plain, content.split("`"))
    return row(
        [Markup("".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)))], tag
    )


def row(parts: Iterable[Markup], tag: str = "p", style: str = "") -> Markup:
    """A ``<tag>`` element with ``parts``; ``style`` is its CSS class."""
    attribute = f' class="{plain(style)}"' if style else ""
    return Markup(f"<{tag}{attribute}>{' '.join(parts)}</{tag}>")


def picture(content: bytes) -> Markup:
    """Embed the picture of a file in the page; a note stands for a format that is not in `PICTURES`."""
    for start, kind in PICTURES.items():
        if content.startswith(start):
            return Markup(f'<img alt="" src="data:image/{kind};base64,{b64encode(content).decode()}">')
    return text("a picture in another format", "span", "quiet")


def table(head: Sequence[str], body: Iterable[Sequence[str]], style: str = "") -> Markup:
    """A table of text whose first column holds the row names; with the ``style`` ``runs`` that column never scrolls."""
    lines = [f'<table class="{plain(style)}">' if style else "<table>"]
    if any(head):
        lines.append("<thead><tr>" + "".join(text(cell, "th") for cell in head) + "</tr></thead>")
    lines.append("<tbody>")
    for name, *cells in body:
        lines.append("<tr>" + text(name, "th") + "".join(text(cell, "td") for cell in cells) + "</tr>")
    lines.append("</tbody></table>")
    return Markup("\n".join(lines))


def folded(title: str, content: Markup) -> Markup:
    """``content``, hidden until ``title`` is clicked."""
    return Markup(f"<details><summary>{plain(title)}</summary>{content}</details>")


def page(title: str, parts: Iterable[Markup]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{plain(title)}</title>\n<style>{STYLE}{charts.STYLE}"
        f"@media (prefers-color-scheme: dark) {{{DARK}{charts.DARK}}}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


# ── episodes ──────────────────────────────────────────────────────────────────────────────────
# Episodes in the report, turn by turn.

MAX_CHARS = 600
"""Most characters shown of a prompt, an observation or a turn."""
MAX_TURNS = 40
"""Most turns shown of an episode."""


def episodes(records: Sequence[RunRecord]) -> Iterator[Markup]:
    """Yield a section with some episodes of the last step of each run that has any; nothing without."""
    played = [record for record in records if record.episodes]
    if played:
        yield text("Episodes", "h2")
    for record in played:
        name = "" if len(records) == 1 else f"{record.name}: "
        yield text(f"{name}one of each of the first groups of step {nth(record.episodes[0].step)}", "p", "quiet")
        yield from map(_folded, record.episodes)


def _folded(episode: SampledEpisode) -> Markup:
    reason = ", cut by a limit" if episode.finish_reason == "length" else ""
    facts = f"reward {episode.reward:.4g}{reason}; {summary(episode.turns)}"
    answer = [text(f"answer {_short(episode.answer)}", style="quiet")] if episode.answer else []
    content = row([text(_short(episode.prompt), style="quiet"), *answer, _turns(episode)], "div", "turns")
    return folded(f"{episode.group_id}/{episode.index}: {facts}", content)


def _turns(episode: SampledEpisode) -> Markup:
    rows = [
        [view.title, _short(view.observation), _short(view.text), view.facts]
        for view in list(views(episode.turns))[:MAX_TURNS]
    ]
    if (rest := len(episode.turns) - MAX_TURNS) > 0:
        rows.append([f"{rest} more", "", "", ""])
    return table(["", "environment", "policy", ""], rows)


def _short(content: str, most: int = MAX_CHARS) -> str:
    return content if len(content) <= most else f"{content[:most]} …"


# ── pictures ──────────────────────────────────────────────────────────────────────────────────
# Pictures of prompts in the report, each with a completion and its reward.

MAX_PICTURE_CHARS = 400
"""Most characters shown of a prompt, completion or answer."""


def pictures(records: Sequence[RunRecord]) -> Iterator[Markup]:
    """Yield a section with the samples of runs with pictures; nothing if there are none."""
    pictured = [record for record in records if record.pictured]
    if pictured:
        yield text("Pictures", "h2")
    for record in pictured:
        name = "" if len(records) == 1 else f"{record.name}: "
        step = nth(record.pictured[0].step)
        yield text(f"{name}one trajectory of each of the first groups of step {step}", "p", "quiet")
        yield row([_card(sample) for sample in record.pictured], "div", "charts")


def _card(sample: PicturedSample) -> Markup:
    most = MAX_PICTURE_CHARS
    facts = f"reward {sample.reward:g}" + (f", answer {_short(sample.answer, most)}" if sample.answer else "")
    words = [text(_short(sample.prompt, most), style="quiet"), text(_short(sample.completion, most)), text(facts)]
    return row([*map(picture, sample.files), *words], "div")


# ── report ────────────────────────────────────────────────────────────────────────────────────

SHOWN = 200
"""Number of events listed per run: the newest."""

FIRST = 4
"""Charts above the numbers."""
SIGNS = {"finished": "✓", "failed": "✗", "interrupted": "‖", "running": "…", "paused": "‖", "stopped": "…"}
"""Sign before each state that the files of a run tell."""


def write_report(runs: Sequence[Path], out: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
    """
    Write the report about ``runs`` to ``out``, replacing it atomically; several runs share the charts.

    A run that failed or still continues is shown up to its last record; missing files are named.
    Raises `ConfigError` if ``runs`` is empty, one of them is not a directory, or ``out`` cannot be written.
    """
    if not runs:
        raise ConfigError("a report needs at least one run directory")
    records = [read_run(path, wall_clock=wall_clock) for path in runs]
    named = [replace(record, name=name) for record, name in zip(records, labels(runs), strict=True)]
    times = TimesFile(RunDirectory(runs[0]).times)
    if len(runs) == 1:  # Who waits is told of a single run alone.
        times.advance(math.inf)
    made_at = datetime.fromtimestamp(wall_clock()).astimezone()
    content = render([named[place] for place in in_order(named)], times.bands.by_role(), made_at)
    with output(out) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
        as_folder(unfinished)


def render(records: Sequence[RunRecord], waits: Mapping[str, Mapping[str, float]], made_at: datetime) -> str:
    charts, empty = draw(records)
    alone = len(records) == 1
    title = ", ".join(record.name for record in records)
    as_of = text(f"As of {made_at:%Y-%m-%d %H:%M %Z}.", "span", "quiet")
    parts = [
        row([text(title, "span"), *(_pills(records[0]) if alone else [])], "h1"),
        *([] if alone else [_compared(compare(records), as_of)]),
        *(_header(record, waits, [as_of] if alone else [], alone=alone) for record in records),
        row([Markup(chart) for chart in charts[:FIRST]], "div", "charts"),
        *_numbers(records),
        text("Further curves", "h2"),
        row([Markup(chart) for chart in [*charts[FIRST:], *evaluation_charts(records)]], "div", "charts"),
    ]
    if empty:
        parts.append(text(f"Not recorded: {'; '.join(empty)}.", style="quiet"))
    parts += [*pictures(records), *episodes(records)]
    parts += [text("Events", "h2"), *(part for record in records for part in _events(record, alone=alone))]
    parts += [text("Config", "h2"), *(_config(record) for record in records if record.config)]
    return page(f"asyncrl: {title}{f', {records[0].status}' if alone else ''}", parts)


def _compared(found: RunComparison, as_of: Markup) -> Markup:
    return row([text(found.doing, "span"), text(found.verdict, "b"), text(found.because, "span"), as_of])


def _header(
    record: RunRecord, waits: Mapping[str, Mapping[str, float]], as_of: Sequence[Markup], *, alone: bool
) -> Markup:
    name = [] if alone else [text(record.name, "strong"), *_pills(record)]
    is_new = record.status == "running" and not record.metrics  # its files are missing because it has just begun
    notes = [text(f"{'; '.join(record.notes)}.", "span", "quiet")] if record.notes and not is_new else []
    line = state_line(record, waits, is_alone=alone)
    because = line.because if alone else short_cause(line.because)
    judged = row([text(line.word, "b", line.verdict), marked(because, "span")], "span", "judged" if alone else "")
    return row([*name, row([text(line.doing, "span"), judged], "span", "sentence"), *notes, *as_of])


def _pills(record: RunRecord) -> Iterator[Markup]:
    yield text(f"{SIGNS[record.status]} {record.status}", "span", f"pill {record.status}")
    if lost := 0 if record.is_over else len(gone(record.events)):
        yield text(f"{formatting.counted(lost, 'node')} lost", "span", "pill failed")


def _numbers(records: Sequence[RunRecord]) -> Iterator[Markup]:
    columns = [headline(record) for record in records]
    head = ["", *(record.name for record in records)] if len(records) > 1 else []
    lines = [
        [label, *values] for label in columns[0] if set(values := [column[label] for column in columns]) != {UNKNOWN}
    ]
    numbers = table(head, lines, "runs" if len(records) > 1 else "")
    yield text("Numbers", "h2")
    yield text("Of all steps, unless a row names others.", style="quiet")
    yield row([numbers, _settings(records)], "div", "side")


def _settings(records: Sequence[RunRecord]) -> Markup:
    """The settings that matter most of a single run; the settings that differ between several."""
    if len(records) == 1:
        (record,) = records
        keys = dict.fromkeys([*(key for key in MATTERS if key in record.config), *record.live_settings])
        return table([], [[key, _value(record, key)] for key in keys])
    different = compare(records).settings
    if not different:
        return text("The runs have the same config.", style="quiet")
    lines = [[key, *values] for key, values in different.items()]
    return table(["differing settings", *(record.name for record in records)], lines, "runs")


def _value(record: RunRecord, key: str) -> str:
    """A setting as the run began with it, and what it became."""
    return record.history(key, _plain(record.config.get(key)), _plain)


def _events(record: RunRecord, *, alone: bool) -> Iterator[Markup]:
    notable = [one for one in weighed(record.events) if one.weight != "routine" and not one.is_echo]
    many = f"{len(notable)} notable events" if notable else "no notable events"
    last = f"; the last {SHOWN}:" if len(notable) > SHOWN else ""
    yield text(f"{'' if alone else f'{record.name}: '}{many}{last}", style="quiet")
    if notable:
        listed = table(
            ["event", "at, of the run's time", "state", "details"],
            [
                [
                    str(one.event.get("event")),
                    _text(finite(one.event.get("time_s")), formatting.duration),
                    one.end or ("trouble" if one.weight == "trouble" else ""),
                    news(one.event) or _details(one.event),
                ]
                for one in notable[-SHOWN:]
            ],
        )
        yield row([listed], "div", "scroll")


def _details(event: Mapping[str, Any]) -> str:
    return "   ".join(f"{key}={_plain(value)}" for key, value in event.items() if key not in ("event", "at", "time_s"))


def _config(record: RunRecord) -> Markup:
    everything = table([], [[key, _value(record, key)] for key in record.config])
    return folded(f"Every value of {record.name}", row([everything], "div", "scroll"))


def _plain(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
