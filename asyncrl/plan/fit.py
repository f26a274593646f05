"""
A plan fitted to a run, and what changes would bring.

    times, metrics, samples ─▶ plan ─▶ the broker's rules in a simulated cluster ─▶ step time, beside the measured one
                                └ with one change ─▶ step time

A run tells the speed of its engines at one load. How much of a decode step is left with one completion is fitted: the
share with which the plan's step time is the measured one.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections import Config
from asyncrl.messages import Role
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.why.attribution import Attribution, attribute
from asyncrl.plan.inputs import inputs
from asyncrl.plan.lengths import Lengths, read_samples
from asyncrl.plan.plan_file import changed
from asyncrl.plan.sections import Horizon, LengthNumbers, Plan, Publish, Rollout, Trainer, TrainerSpeed
from asyncrl.plan.simulate import simulate

CLOSE = 0.15
"""Largest error of the fitted plan's step time, of the measured one, with which it may predict."""
HALVINGS = 5
"""Bisection steps for the share that is fitted."""
NO_PREFILL = 1e12
"""Tokens per second: the speed of decoding was measured with prefill in it."""


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
    gains: list[Gain]
    """Gains of single changes, the largest first; empty if the fitted plan does not describe the run."""

    @property
    def is_close(self) -> bool:
        """False if the fitted plan does not describe the run."""
        return abs(self.fitted_s - self.measured_s) <= CLOSE * self.measured_s


def forecast(record: RunRecord, config: Config, samples: Path) -> Forecast | None:
    """
    Simulate the run, and the run with each change. Takes a second for each.

    None if the run is too short, shares its devices, or has no samples. Raises `DataError` if they cannot be read.
    """
    steady = attribute(record.times, is_steady=True)
    num_steps = record.times[-1].step - record.times[0].step if record.times else 0
    has_both = steady.names("rollout") and steady.names("trainer")
    if num_steps < 1 or not has_both or config.rollout.colocated or not any(samples.glob("*.parquet")):
        return None
    measured_s, lengths = steady.span_s / num_steps, read_samples(samples)
    plan, fitted_s = _fitted(plan_of(record, config, samples, steady), measured_s, lengths)
    found = Forecast(measured_s, fitted_s, [])
    if found.is_close:
        gains = [
            Gain(name, fitted_s / _step_s(changed(plan, settings), lengths))
            for name, settings in _changes(plan).items()
        ]
        found.gains.extend(sorted(gains, key=lambda gain: -gain.speedup))
    return found


def plan_of(record: RunRecord, config: Config, samples: Path, steady: Attribution) -> Plan:
    """Plan of a run: each rollout is a device, the trainer one. A decode step takes equally long at any load."""
    schedule, slots = config.schedule, config.rollout.slots
    replicas = len(steady.names("rollout"))
    num_open = schedule.window * schedule.group_size / replicas
    trained = sum(float(line.get("tokens") or 0.0) for line in record.metrics[1:])
    return Plan(
        devices=replicas + 1,
        lengths=LengthNumbers(samples=str(samples)),
        rollout=Rollout(
            devices=replicas,
            slots=slots,
            decode=[(max(min(num_open, slots), 2.0), _rate(steady, "rollout", "sampling"))],
            prefill_tokens_per_s=NO_PREFILL,
            kv="keep",
        ),
        trainer=Trainer(speeds=[TrainerSpeed(devices=1, tokens_per_s=trained / _trainer_s(steady))]),
        publish=Publish(seconds=record.mean("receive_s") or 0.0, pause_s=record.mean("pause_s") or 0.0),
        schedule=schedule,
        horizon=Horizon(publishes=4, warm_up=2),
    )


def _changes(plan: Plan) -> dict[str, Mapping[str, Any]]:
    schedule = plan.schedule
    changes: dict[str, Mapping[str, Any]] = {
        "one more rollout": {"devices": plan.devices + 1, "rollout.devices": plan.rollout.devices + 1},
        "a trainer twice as fast": {"devices": plan.devices + plan.trainer_devices},
        f"schedule.staleness = {schedule.staleness + 1:g}": {"schedule.staleness": schedule.staleness + 1},
        f"schedule.steps_per_publish = {2 * schedule.steps_per_publish}": {
            "schedule.steps_per_publish": 2 * schedule.steps_per_publish
        },
    }
    if schedule.order == "fifo":
        changes['schedule.order = "windowed"'] = {"schedule.order": "windowed"}
    return changes


def _fitted(plan: Plan, measured_s: float, lengths: Lengths) -> tuple[Plan, float]:
    """The plan whose decode steps shrink with fewer completions as far as the measured step time wants, and its own."""
    [(running, tokens_per_s)] = plan.rollout.decode
    low, high = -math.log(running), 0.0
    best, best_s = plan, _step_s(plan, lengths)
    for _ in range(HALVINGS):
        share = math.exp(middle := (low + high) / 2)  # of the seconds of a full step, in a step of one completion
        points = [(1.0, tokens_per_s / running / share), (running, tokens_per_s)]
        tried = replace(plan, rollout=replace(plan.rollout, decode=points))
        step_s = _step_s(tried, lengths)
        if abs(step_s - measured_s) < abs(best_s - measured_s):
            best, best_s = tried, step_s
        low, high = (middle, high) if step_s < measured_s else (low, middle)
    return best, best_s


def _step_s(plan: Plan, lengths: Lengths) -> float:
    return simulate(plan, inputs(plan, lengths)).step_s


def _rate(steady: Attribution, role: Role, activity: str) -> float:
    """Tokens per second of a node of a role while it does this."""
    nodes = [steady.nodes[name] for name in steady.names(role)]
    seconds = sum(node.seconds.get(activity, 0.0) for node in nodes)
    return max(sum(node.tokens for node in nodes) / max(seconds, 1e-6), 1e-6)


def _trainer_s(steady: Attribution) -> float:
    """Seconds in which the trainer worked at steps."""
    node = steady.nodes[steady.names("trainer")[0]]
    return max(sum(node.seconds.get(name, 0.0) for name in ("training", "fetching", "checkpointing")), 1e-6)
