"""
The answer as one HTML page: step time by split, what decodes at a moment, who is how stale, measured beside predicted.

It needs neither a network nor a script, like the report of a run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.files.atomic import replacing
from asyncrl.observe.report import page
from asyncrl.observe.report.charts import Series, line_chart
from asyncrl.observe.report.page import Markup
from asyncrl.plan.cells import HEAD, MEASURED_HEAD, measured_rows, rows
from asyncrl.plan.outcome import SimulationResult
from asyncrl.plan.search import Found
from asyncrl.plan.study import Comparison, Study


def write_picture(study: Study, title: str, out: Path) -> None:
    """Write the page to ``out``, replaced at once."""
    with replacing(out, durable=False) as unfinished:
        unfinished.write_text(render(study, title), encoding="utf-8")


def render(study: Study, title: str) -> str:
    """The page."""
    charts = [
        *([_splits(study, study.found)] if study.found else []),
        _timeline(study.planned),
        _staleness(study),
        *([_measured(study.comparisons)] if len(study.comparisons) > 1 else []),
    ]
    parts = [
        page.text(title, "h1"),
        page.text(_sentence(study)),
        page.table(["", *HEAD], [[name, *cells] for name, cells in rows(study)]),
        page.text("Curves", "h2"),
        page.row([Markup(chart) for chart in charts], "div", "charts"),
        *_comparisons(study.comparisons),
        *_assumptions(study.assumptions),
    ]
    return page.page(title, parts)


def _sentence(study: Study) -> str:
    return (
        f"{study.planned.devices} devices; completions of {study.length_mean:,.0f} tokens on average; a window of "
        f"{study.window:,} groups. Running is completions decoded at once by a replica that has any."
    )


def _splits(study: Study, found: Found) -> str:
    series = [
        Series(
            points=[(outcome.rollout_devices, outcome.step_s) for outcome in outcomes],
            label=f"staleness {staleness:g}",
            colour=number,
            dashed=number % 2 == 1,
            dots=True,
        )
        for number, (staleness, outcomes) in enumerate(found.by_staleness().items())
    ]
    devices = [outcome.rollout_devices for outcome in found.tried]
    baseline = [(float(x), study.baseline.step_s) for x in sorted({min(devices), max(devices)})]
    series.append(Series(points=baseline, label="colocated synchronous", colour=5, dashed=True))
    return line_chart("Seconds a step by split", series, x_label="rollout devices", zero=True)


def _timeline(planned: SimulationResult) -> str:
    start_s = planned.timeline[0][0]
    points = [(second - start_s, running) for second, running in planned.timeline]
    return line_chart("Completions decoded at once, as planned", [Series(points=points)], x_label="second", zero=True)


def _staleness(study: Study) -> str:
    kinds = (("tokens", study.planned.token_staleness), ("trajectories", study.planned.trajectory_staleness))
    last = max(study.planned.staleness_max, 1)
    series = [
        Series(
            points=[(value, shares.get(value, 0.0)) for value in range(last + 1)],
            label=label,
            colour=number,
            dashed=number == 1,
            dots=True,
        )
        for number, (label, shares) in enumerate(kinds)
    ]
    return line_chart("Share by staleness, as planned", series, x_label="versions", zero=True, percent=True)


def _measured(comparisons: Sequence[Comparison]) -> str:
    series = [
        Series(points=[(n, c.measured_s) for n, c in enumerate(comparisons, 1)], label="measured", dots=True),
        Series(
            points=[(n, c.predicted_s) for n, c in enumerate(comparisons, 1)],
            label="predicted",
            colour=1,
            dashed=True,
            dots=True,
        ),
    ]
    return line_chart("Seconds, measured and predicted, by row", series, x_label="row", zero=True)


def _comparisons(comparisons: Sequence[Comparison]) -> Iterator[Markup]:
    if comparisons:
        yield page.text("Measured and predicted", "h2")
        numbered = enumerate(measured_rows(comparisons), 1)
        yield page.table(["row", *MEASURED_HEAD], [[f"{row}  {name}", *cells] for row, (name, cells) in numbered])


def _assumptions(assumptions: Sequence[str]) -> Iterator[Markup]:
    if assumptions:
        yield page.text("Assumed", "h2")
        yield from (page.text(assumption) for assumption in assumptions)
