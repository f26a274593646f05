"""A plan report as one HTML page with charts, without a script or anything from a network."""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.files.output import output
from asyncrl.observe.report import page
from asyncrl.observe.report.charts import Series, line_chart
from asyncrl.observe.report.page import Markup
from asyncrl.plan.report import Comparison, PlanReport
from asyncrl.plan.result import SimulationResult
from asyncrl.plan.search import SearchResult
from asyncrl.plan.table import HEAD, MEASURED_HEAD, measured_rows, rows


def write_page(report: PlanReport, title: str, out: Path) -> None:
    """Write the page to ``out``, replacing the file atomically; raises `ConfigError` if that fails."""
    with output(out) as unfinished:
        unfinished.write_text(render(report, title), encoding="utf-8")


def render(report: PlanReport, title: str) -> str:
    charts = [
        *([_splits(report, report.found)] if report.found else []),
        _timeline(report.planned),
        _staleness(report),
        *([_measured(report.comparisons)] if len(report.comparisons) > 1 else []),
    ]
    summary = (
        f"{report.planned.devices} devices; completions of {report.length_mean:,.0f} tokens on average; a window of "
        f"{report.window:,} groups. Running is completions decoded at once by a replica that has any."
    )
    parts = [
        page.text(title, "h1"),
        page.text(summary),
        page.table(["", *HEAD], [[name, *cells] for name, cells in rows(report)]),
        page.text("Curves", "h2"),
        page.row([Markup(chart) for chart in charts], "div", "charts"),
    ]
    if report.comparisons:
        numbered = enumerate(measured_rows(report.comparisons), 1)
        cells = [[f"{row}  {name}", *cells] for row, (name, cells) in numbered]
        parts += [page.text("Measured and predicted", "h2"), page.table(["row", *MEASURED_HEAD], cells)]
    if report.assumptions:
        parts += [page.text("Assumed", "h2"), *map(page.text, report.assumptions)]
    return page.page(title, parts)


def _splits(report: PlanReport, found: SearchResult) -> str:
    series = [
        Series(
            points=[(result.rollout_devices, result.step_s) for result in results],
            label=f"staleness {staleness:g}",
            colour=number,
            dashed=number % 2 == 1,
            dots=True,
        )
        for number, (staleness, results) in enumerate(found.by_staleness().items())
    ]
    devices = [result.rollout_devices for result in found.tried]
    baseline = [(float(x), report.baseline.step_s) for x in sorted({min(devices), max(devices)})]
    series.append(Series(points=baseline, label="colocated synchronous", colour=5, dashed=True))
    return line_chart("Seconds a step by split", series, x_label="rollout devices", zero=True)


def _timeline(planned: SimulationResult) -> str:
    start_s = planned.timeline[0][0]
    points = [(second - start_s, running) for second, running in planned.timeline]
    return line_chart("Completions decoded at once, as planned", [Series(points=points)], x_label="second", zero=True)


def _staleness(report: PlanReport) -> str:
    versions = range(max(report.planned.staleness_max, 1) + 1)
    tokens, trajectories = report.planned.token_staleness, report.planned.trajectory_staleness
    series = _two_series(
        tokens=[(version, tokens.get(version, 0.0)) for version in versions],
        trajectories=[(version, trajectories.get(version, 0.0)) for version in versions],
    )
    return line_chart("Share by staleness, as planned", series, x_label="versions", zero=True, percent=True)


def _measured(comparisons: Sequence[Comparison]) -> str:
    series = _two_series(
        measured=[(row, comparison.measured_s) for row, comparison in enumerate(comparisons, 1)],
        predicted=[(row, comparison.predicted_s) for row, comparison in enumerate(comparisons, 1)],
    )
    return line_chart("Seconds, measured and predicted, by row", series, x_label="row", zero=True)


def _two_series(**points: list[tuple[float, float]]) -> list[Series]:
    return [
        Series(points=line, label=label, colour=number, dashed=number == 1, dots=True)
        for number, (label, line) in enumerate(points.items())
    ]
