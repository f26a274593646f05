"""The answer in words, for a table on a terminal or on a page."""

from collections.abc import Iterator, Sequence

from asyncrl.observe.figures import share
from asyncrl.plan.outcome import SimulationResult
from asyncrl.plan.study import Comparison, Study

HEAD = ["devices", "staleness", "s/step", "speed-up", "idle rollout", "idle trainer", "running", "stale mean/max"]
"""Columns of `rows`."""


def rows(study: Study) -> Iterator[tuple[str, list[str]]]:
    """Baseline, plan, and best found, in words."""
    yield "colocated synchronous", _cells(study, study.baseline)
    yield "as planned", _cells(study, study.planned)
    if study.found:
        yield "best found", _cells(study, study.found.best)


MEASURED_HEAD = ["groups", "measured s", "predicted s", "measured ratio", "predicted ratio", "off"]
"""Columns of `measured_rows`. A ratio is how many times faster than the baseline."""


def measured_rows(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, list[str]]]:
    """Real runs beside their predictions, in words."""
    for row in comparisons:
        seconds = [f"{row.measured_s:.1f}", f"{row.predicted_s:.1f}"]
        ratios = [_ratio(row.measured_ratio), _ratio(row.predicted_ratio)]
        yield row.name, [str(row.groups), *seconds, *ratios, f"{row.off:+.0%}"]


def split(outcome: SimulationResult) -> str:
    """Rollout and trainer devices."""
    trainer = outcome.devices - outcome.rollout_devices
    return f"{outcome.rollout_devices} + {trainer}" if trainer else str(outcome.devices)


def _cells(study: Study, outcome: SimulationResult) -> list[str]:
    return [
        split(outcome),
        f"{outcome.staleness:g}",
        f"{outcome.step_s:.4g}",
        f"{study.speed_up(outcome):.2f}x",
        share(outcome.rollout_idle),
        share(outcome.trainer_idle),
        f"{outcome.running:.0f}",
        f"{outcome.staleness_mean:.2f}/{outcome.staleness_max}",
    ]


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
