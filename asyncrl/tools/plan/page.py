"""
The report of `asyncrl plan`: tables for a terminal, and an HTML page with charts, without a script or anything from a
network.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import output
from asyncrl.records.formatting import share
from asyncrl.terminal import aligned
from asyncrl.tools.plan.plan_file import Inputs, changed, inputs
from asyncrl.tools.plan.sections import MeasuredRun, Plan
from asyncrl.tools.plan.simulate import SearchResult, search, simulate, with_result
from asyncrl.tools.plan.simulated.cluster import SimulationResult
from asyncrl.tools.plan.simulated.rollout import colocated
from asyncrl.tools.report import report as report_module
from asyncrl.tools.report.charts import Series, line_chart
from asyncrl.tools.report.report import Markup

# ── report ────────────────────────────────────────────────────────────────────────────────────
# The report of `asyncrl plan`: simulated baseline, plan and best split, and measured runs beside their predictions.


class PlanComparison(Struct, frozen=True, kw_only=True):
    """A measured run and its prediction. Ratios are speed-ups over the measured and over the predicted baseline."""

    name: str
    groups: int
    measured_s: float
    predicted_s: float
    measured_ratio: float | None
    """None if no baseline was measured."""
    predicted_ratio: float | None

    @property
    def off(self) -> float:
        """Relative error of the predicted ratio, or of the predicted seconds if there is no ratio."""
        if self.measured_ratio is None or self.predicted_ratio is None:
            return self.predicted_s / self.measured_s - 1
        return self.predicted_ratio / self.measured_ratio - 1


class PlanReport(Struct, frozen=True, kw_only=True):
    length_mean: float
    """Mean completion tokens, after any fit."""
    window: int
    """Groups."""
    baseline: SimulationResult
    planned: SimulationResult
    found: SearchResult | None
    """None without a search."""
    comparisons: list[PlanComparison]
    assumptions: list[str]

    def speed_up(self, result: SimulationResult) -> float:
        """Speed-up over the colocated baseline, per group."""
        return self.baseline.group_s / result.group_s


def make_report(plan: Plan, *, searched: bool) -> PlanReport:
    """
    Simulate a plan, its baseline and measured rows, and if ``searched`` search for the best settings.

    With ``schedule.staleness = "auto"`` the plan is what the search finds. Raises as `inputs`, and `ConfigError` for
    such a plan without a search.
    """
    is_auto = plan.schedule.staleness == "auto"
    if is_auto and not searched:
        raise ConfigError("schedule.staleness is 'auto', which a search finds: add --search, or give a number")
    ready = inputs(plan)
    baseline = colocated(plan, ready.lengths, ready.step_s, ready.training)
    found = search(plan, ready) if searched else None
    chosen = with_result(plan, found.best) if found and is_auto else plan
    # The search measures fewer versions than the plan's horizon has.
    planned = simulate(chosen, ready) if chosen.trainer_devices else baseline
    return PlanReport(
        length_mean=ready.lengths.mean,
        window=chosen.schedule.window,
        baseline=baseline,
        planned=planned,
        found=found,
        comparisons=list(_comparisons(plan, ready, baseline, planned)),
        assumptions=plan.assumptions,
    )


def _comparisons(
    plan: Plan, ready: Inputs, baseline: SimulationResult, planned: SimulationResult
) -> Iterator[PlanComparison]:
    predicted = [
        _predict(plan, measured, ready) if measured.set else baseline if measured.colocated else planned
        for measured in plan.measured
    ]
    pairs = list(zip(plan.measured, predicted, strict=True))
    base = next(((m.seconds / m.groups, result.group_s) for m, result in pairs if m.colocated), None)
    for measured, result in pairs:
        yield PlanComparison(
            name=measured.name,
            groups=measured.groups,
            measured_s=measured.seconds,
            predicted_s=result.group_s * measured.groups,
            measured_ratio=base and base[0] * measured.groups / measured.seconds,
            predicted_ratio=base and base[1] / result.group_s,
        )


def _predict(plan: Plan, measured: MeasuredRun, ready: Inputs) -> SimulationResult:
    """Simulate the plan with the row's changes; lengths and speeds are kept unless the row changes them."""
    other = changed(plan, {**measured.set, "measured": []})
    if any(key.startswith(("lengths.", "rollout.decode", "trainer.")) for key in measured.set):
        ready = inputs(other)
    if measured.colocated:
        return colocated(other, ready.lengths, ready.step_s, ready.training)
    return simulate(other, ready)


# ── table ─────────────────────────────────────────────────────────────────────────────────────
# Formatted rows of a plan report, for an HTML page, and the tables of a terminal.

HEAD = [
    "devices",
    "staleness",
    "steps/publish",
    "s/step",
    "speed-up",
    "idle rollout",
    "idle trainer",
    "running",
    "stale mean/max",
]
MEASURED_HEAD = ["groups", "measured s", "predicted s", "measured ratio", "predicted ratio", "off"]
"""Columns of `measured_rows`. A ratio is the speed-up over the baseline."""
BAR = 40
"""Characters of a histogram bar for 100 %."""


def rows(report: PlanReport) -> Iterator[tuple[str, list[str]]]:
    """Name and cells of the baseline, the plan, and the best plan found."""
    yield "colocated synchronous", _cells(report, report.baseline)
    yield "as planned", _cells(report, report.planned)
    if report.found:
        yield "best found", _cells(report, report.found.best)


def measured_rows(comparisons: Sequence[PlanComparison]) -> Iterator[tuple[str, list[str]]]:
    """Name and cells of each measured run beside its prediction."""
    for row in comparisons:
        seconds = [f"{row.measured_s:.1f}", f"{row.predicted_s:.1f}"]
        ratios = [_ratio(row.measured_ratio), _ratio(row.predicted_ratio)]
        yield row.name, [str(row.groups), *seconds, *ratios, f"{row.off:+.0%}"]


def split(result: SimulationResult) -> str:
    """``rollout + trainer`` devices; one number for the baseline."""
    trainer = result.devices - result.rollout_devices
    return f"{result.rollout_devices} + {trainer}" if trainer else str(result.devices)


def _cells(report: PlanReport, result: SimulationResult) -> list[str]:
    return [
        split(result),
        f"{result.staleness:g}",
        str(result.steps_per_publish),
        f"{result.step_s:.4g}",
        f"{report.speed_up(result):.2f}x",
        share(result.rollout_idle),
        share(result.trainer_idle),
        f"{result.running:.0f}",
        f"{result.staleness_mean:.2f}/{result.staleness_max}",
    ]


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def report_table(report: PlanReport, name: str) -> str:
    """Predicted step times, staleness, the splits tried, measurements and assumptions; ``name`` is the title."""
    shares = report.planned.token_staleness
    lines = [
        f"{name}: {report.planned.devices} devices, completions of {report.length_mean:,.0f} tokens on average, "
        f"a window of {report.window:,} groups",
        "",
        *aligned([["", *HEAD], *([label, *cells] for label, cells in rows(report))], right=range(1, len(HEAD) + 1)),
        "",
        "staleness of trained tokens, as planned",
        *aligned([[f"  {age}", f"{part:.1%}", "█" * round(BAR * part)] for age, part in shares.items()], right=[0, 1]),
    ]
    if report.found:
        lines += ["", "splits tried", *aligned(_tried(report, report.found), right=[1, 2, 3])]
    if report.comparisons:
        measured = ([f"  {row}", *cells] for row, cells in measured_rows(report.comparisons))
        lines += ["", "measured and predicted", *aligned([["", *MEASURED_HEAD], *measured], right=range(1, 7))]
    if report.assumptions:
        lines += ["", "assumptions", *(f"  - {assumption}" for assumption in report.assumptions)]
    return "\n".join(lines)


def _tried(report: PlanReport, found: SearchResult) -> list[list[str]]:
    table = [["  staleness", "devices", "s/step", "speed-up", ""]]
    for staleness, results in found.by_staleness().items():
        for result in results:
            mark = "best" if result is found.best else ""
            step_s, speed_up = f"{result.step_s:.4g}", f"{report.speed_up(result):.2f}x"
            table.append([f"  {staleness:g}", split(result), step_s, speed_up, mark])
    return table


# ── html page ─────────────────────────────────────────────────────────────────────────────────


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
        report_module.text(title, "h1"),
        report_module.text(summary),
        report_module.table(["", *HEAD], [[name, *cells] for name, cells in rows(report)]),
        report_module.text("Curves", "h2"),
        report_module.row([Markup(chart) for chart in charts], "div", "charts"),
    ]
    if report.comparisons:
        numbered = enumerate(measured_rows(report.comparisons), 1)
        cells = [[f"{row}  {name}", *cells] for row, (name, cells) in numbered]
        parts += [
            report_module.text("Measured and predicted", "h2"),
            report_module.table(["row", *MEASURED_HEAD], cells),
        ]
    if report.assumptions:
        parts += [report_module.text("Assumed", "h2"), *map(report_module.text, report.assumptions)]
    return report_module.page(title, parts)


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


def _measured(comparisons: Sequence[PlanComparison]) -> str:
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
