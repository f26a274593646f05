"""Gains of single changes of a run, predicted by a plan fitted to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.observe.run_record import RunRecord
from asyncrl.plan.fit import fit_run, step_s
from asyncrl.plan.plan_file import changed
from asyncrl.plan.sections import Plan

ONE_MORE = "one more rollout"


class Gain(Struct, frozen=True):
    change: str
    """In words, or as a setting."""
    speedup: float
    """Factor on the steps per second."""


class Forecast(Struct, frozen=True):
    measured_s: float
    """Seconds of a step in the run."""
    fitted_s: float
    """The same in the fitted plan."""
    is_close: bool
    """False if the fitted plan does not describe the run."""
    gains: list[Gain]
    """Gains of single changes, the largest first; empty if the fitted plan does not describe the run."""


def forecast(record: RunRecord, config: Config, samples: Path) -> Forecast | None:
    """
    Simulate the run, and the run with each change. Takes a second for each.

    None if the run is too short, shares its devices, or has no samples. Raises `DataError` if they cannot be read.
    """
    if (fitted := fit_run(record, config, record.times, samples)) is None:
        return None
    found = Forecast(fitted.measured_s, fitted.step_s, fitted.is_close, [])
    if found.is_close:
        gains = [
            Gain(name, fitted.step_s / step_s(changed(fitted.plan, settings), fitted.lengths))
            for name, settings in _changes(fitted.plan).items()
        ]
        found.gains.extend(sorted(gains, key=lambda gain: -gain.speedup))
    return found


def _changes(plan: Plan) -> dict[str, Mapping[str, Any]]:
    schedule, more = plan.schedule, plan.schedule.staleness_bound + 1
    changes: dict[str, Mapping[str, Any]] = {
        ONE_MORE: {"devices": plan.devices + 1, "rollout.devices": plan.rollout.devices + 1},
        "a trainer twice as fast": {"devices": plan.devices + plan.trainer_devices},
        f"schedule.staleness = {more:g}": {"schedule.staleness": more},
        f"schedule.steps_per_publish = {2 * schedule.steps_per_publish}": {
            "schedule.steps_per_publish": 2 * schedule.steps_per_publish
        },
    }
    if plan.reward.seconds:
        changes["rewards twice as fast"] = {"reward.seconds": plan.reward.seconds / 2}
    if schedule.order == "fifo":
        changes['schedule.order = "windowed"'] = {"schedule.order": "windowed"}
    return changes
