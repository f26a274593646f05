"""Formatted rows of a plan report, for a table on a terminal or an HTML page."""

from collections.abc import Iterator, Sequence

from asyncrl.observe.formatting import share
from asyncrl.plan.report import Comparison, PlanReport
from asyncrl.plan.result import SimulationResult

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


def rows(report: PlanReport) -> Iterator[tuple[str, list[str]]]:
    """Name and cells of the baseline, the plan, and the best plan found."""
    yield "colocated synchronous", _cells(report, report.baseline)
    yield "as planned", _cells(report, report.planned)
    if report.found:
        yield "best found", _cells(report, report.found.best)


def measured_rows(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, list[str]]]:
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
