"""
Plans fitted to the speeds of a run, what they predict of single changes, and the staleness that ``auto`` takes from
them.

    times, metrics ─▶ ObservedSpeeds ─▶ plan ◀─ pace of the engines ─ the broker's rules under virtual time, step time

A decode step takes ``a + b running`` seconds. Summed over any stretch of sampling that is ``a`` times its steps plus
``b`` times its tokens: both are found by least squares over the steps of the run and its rollouts. Both are then scaled
such that the plan's step time is the measured one.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.staleness_control import StalenessChoice, transition
from asyncrl.config.config import Config
from asyncrl.config.live import with_values
from asyncrl.config.run_file import load_config
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.records.times import TimesLine, without_starts
from asyncrl.tools.plan.lengths import Lengths, read_samples
from asyncrl.tools.plan.plan_file import changed, inputs
from asyncrl.tools.plan.sections import (
    Horizon,
    LengthNumbers,
    Plan,
    PlanReward,
    PlanRollout,
    PlanTrainer,
    Publish,
    TrainerSpeed,
)
from asyncrl.tools.plan.simulate import AUTO_STALENESS, simulate
from asyncrl.tools.why import attribute

CLOSE = 0.15
"""Largest error of the fitted plan's step time, of the measured one, with which it may predict."""
HALVINGS, MOST_SCALE = 4, 1.5
"""Bisection steps for the scale of the engines' pace, which is at most `MOST_SCALE` and at least its inverse."""
UNKNOWN_SHARE = 0.5
"""Share of a decode step that does not grow with its completions, where all stretches had equally many of them."""
COMPLETIONS, FEWEST_VERSIONS, MOST_VERSIONS = 2048, 16, 64
"""Simulated for each plan: a few long completions decide about a step."""
FLAT = 0.02
"""Spread of the completions per step over the stretches, below which they tell nothing of its effect."""
NEAR = 0.02
"""Error of the step time that is not mended."""
NO_PREFILL = 1e12
"""Tokens per second: the speed of decoding was measured with prefill in it."""


class StretchSampling(Struct, frozen=True):
    """One rollout in one stretch of a run: what its engine sampled, and the seconds it took."""

    seconds: float
    decode_steps: float
    tokens: float


class ObservedSpeeds(Struct, frozen=True, kw_only=True):
    """Speeds of a run under one schedule. Each rollout counts as a device, and the trainer as one."""

    step_s: float
    rollouts: int
    slots: int
    samplings: list[StretchSampling]
    trained_per_s: float
    """Tokens per second of the trainer while it trains."""
    publish_s: float
    pause_s: float
    """Seconds for which a rollout pauses for new weights."""
    graders: int = 0
    """Reward nodes; each counts as one that judges one completion after the other."""
    verdict_s: float = 0.0
    """Seconds of one reward node for a verdict."""


class Fit(Struct, frozen=True):
    plan: Plan
    lengths: Lengths
    measured_s: float
    """Seconds of a step in the run."""
    step_s: float
    """Seconds of a step in the fitted plan."""

    @property
    def is_close(self) -> bool:
        """False if the fitted plan does not describe the run."""
        return abs(self.step_s - self.measured_s) <= CLOSE * self.measured_s


def fit_run(
    record: RunRecord, config: Config, lines: Sequence[TimesLine], samples: Path, newest: int | None = None
) -> Fit | None:
    """
    The plan fitted to a run.

    Args:
        lines: Times; the steps after the first of them are described.
        samples: Folder of the trained samples, of which the ``newest`` files are read; all by default.

    None if nothing was measured or recorded, or devices take turns. Raises `DataError` if samples cannot be read.
    """
    seen = observed(record, config, lines)
    if seen is None or not any(samples.glob("*.parquet")):
        return None
    return fit(seen, config.schedule, read_samples(samples, newest))


def observed(record: RunRecord, config: Config, lines: Sequence[TimesLine]) -> ObservedSpeeds | None:
    """Speeds in the steps after the first of ``lines``; None if nothing was measured in them, or devices take turns."""
    steady, stretches = attribute(lines, is_steady=True), without_starts(lines)
    num_steps = len({line.step for line in stretches} - {lines[0].step, -1}) if lines else 0
    if num_steps < 1 or not steady.names("rollout") or not steady.names("trainer") or config.rollout.colocated:
        return None
    trained = sum(float(line.get("tokens") or 0.0) for line in record.metrics[-num_steps:])
    samplings = [
        StretchSampling(node.seconds["sampling"], node.decode_steps, node.tokens)
        for line in stretches
        for node in line.nodes.values()
        if node.role == "rollout" and node.decode_steps > 0 and node.seconds.get("sampling", 0.0) > 0
    ]
    if not samplings:
        return None
    trainer = steady.nodes[steady.names("trainer")[0]]
    working_s = sum(trainer.seconds.get(name, 0.0) for name in ("training", "fetching", "checkpointing"))
    grading_s = sum(steady.nodes[name].seconds.get("grading", 0.0) for name in steady.names("reward"))
    return ObservedSpeeds(
        step_s=steady.span_s / num_steps,
        rollouts=len(steady.names("rollout")),
        slots=config.rollout.slots,
        samplings=samplings,
        trained_per_s=max(trained, 1e-6) / max(working_s, 1e-6),
        publish_s=record.mean("receive_s") or 0.0,
        pause_s=record.mean("pause_s") or 0.0,
        graders=len(steady.names("reward")),
        verdict_s=grading_s / steady.verdicts if steady.verdicts else 0.0,
    )


def fit(seen: ObservedSpeeds, schedule: Schedule, lengths: Lengths) -> Fit:
    """The plan of these speeds, its engines' pace scaled such that its step time is nearest to the measured one."""
    fixed_s, each_s = decode_seconds(seen.samplings)

    def scaled(scale: float) -> tuple[Plan, float]:
        plan = _plan(seen, schedule, scale * fixed_s, scale * each_s)
        return plan, step_s(plan, lengths)

    low, middle, high = 1 / MOST_SCALE, 1.0, MOST_SCALE
    best, best_s = tried, tried_s = scaled(middle)
    for _ in range(HALVINGS if abs(best_s - seen.step_s) > NEAR * seen.step_s else 0):
        low, high = (middle, high) if tried_s < seen.step_s else (low, middle)
        middle = math.sqrt(low * high)
        tried, tried_s = scaled(middle)
        if abs(tried_s - seen.step_s) < abs(best_s - seen.step_s):
            best, best_s = tried, tried_s
    return Fit(best, lengths, seen.step_s, best_s)


def decode_seconds(samplings: Sequence[StretchSampling]) -> tuple[float, float]:
    """
    Seconds of a decode step: those of every one, and those for each completion in it, neither below 0.

    The sum of all seconds is kept, and divided by the share that fits the single stretches best.
    """
    seconds, steps, tokens = (
        sum(getattr(each, name) for each in samplings) for name in StretchSampling.__struct_fields__
    )
    fixed_s, each_s = seconds / steps, seconds / tokens
    away = [fixed_s * each.decode_steps - each_s * each.tokens for each in samplings]
    square = sum(value * value for value in away)
    share = UNKNOWN_SHARE
    if square > FLAT**2 * sum(each.seconds**2 for each in samplings):
        rest = (each.seconds - each_s * each.tokens for each in samplings)
        share = min(max(sum(map(operator.mul, rest, away)) / square, 0.0), 1.0)
    return share * fixed_s, (1 - share) * each_s


def step_s(plan: Plan, lengths: Lengths) -> float:
    """Seconds of a step of a plan with these lengths."""
    return simulate(plan, inputs(plan, lengths)).step_s


def _plan(seen: ObservedSpeeds, schedule: Schedule, fixed_s: float, each_s: float) -> Plan:
    most = max(seen.slots, 2)
    plan = Plan(
        devices=seen.rollouts + 1,
        lengths=LengthNumbers(samples="samples"),
        rollout=PlanRollout(
            devices=seen.rollouts,
            slots=seen.slots,
            decode=[(running, running / (fixed_s + each_s * running)) for running in (1.0, float(most))],
            prefill_tokens_per_s=NO_PREFILL,
            kv="keep",
        ),
        trainer=PlanTrainer(speeds=[TrainerSpeed(devices=1, tokens_per_s=seen.trained_per_s)]),
        publish=Publish(seconds=seen.publish_s, pause_s=seen.pause_s),
        reward=PlanReward(seconds=seen.verdict_s, at_once=seen.graders),
        schedule=schedule,
    )
    versions = min(max(FEWEST_VERSIONS, plan.versions_with(COMPLETIONS)), MOST_VERSIONS)
    return replace(plan, horizon=Horizon(publishes=versions, warm_up=2))


# ── auto ──────────────────────────────────────────────────────────────────────────────────────
# The staleness of a run with ``schedule.staleness = "auto"``: the least that is about as fast as the fastest.
#
#     run directory ─▶ times since the last change ─▶ fitted plan ─▶ step time with each staleness ─▶ StalenessChoice

AS_FAST = 0.01
"""A lower staleness is chosen if it costs less than this share of the fastest, a higher one if it brings twice as much.
Between the two the current one is kept, so that noise does not change it back and forth."""
NEWEST_FILES = 64
"""Samples files, one a step, whose lengths are read."""


def choose_staleness(path: Path) -> StalenessChoice:
    """
    The staleness for a run from here on. Takes about ten seconds.

    Raises:
        ConfigError: There is no run in ``path``.
        DataError, LedgerError: Its files are damaged.
    """
    directory = RunDirectory(path)
    record = read_run(path)
    config = with_values(load_config(directory.config), record.live_settings)
    now = config.schedule.staleness_bound
    first = sum(time_s <= record.changed_s for _, time_s in record.curve("time_s")) + transition(config.schedule)
    lines = [line for line in directory.read_times() if line.step >= first]
    fitted = fit_run(record, config, lines, directory.samples, newest=NEWEST_FILES)
    if fitted is None:
        return StalenessChoice(now, now, "no step has been measured under the present settings yet")
    return choice_of(fitted)


def choice_of(fitted: Fit) -> StalenessChoice:
    """The least staleness about as fast as the fastest, by a fitted plan; the present one if the plan does not fit."""
    plan = fitted.plan
    now = plan.schedule.staleness_bound
    if not fitted.is_close:
        steps = (
            f"a step of the run takes {fitted.measured_s:.3g} s, and one of a plan fitted to it {fitted.step_s:.3g} s"
        )
        return StalenessChoice(now, now, f"no prediction: {steps}")
    predicted = {now: fitted.step_s}
    for staleness in sorted({*AUTO_STALENESS} - {now}):
        with suppress(ConfigError):  # A run would refuse it, because of max_staleness for instance.
            predicted[staleness] = step_s(changed(plan, {"schedule.staleness": staleness}), fitted.lengths)
    predicted = dict(sorted(predicted.items()))
    fastest = min(predicted.values())
    least = next(staleness for staleness, seconds in predicted.items() if seconds <= (1 + AS_FAST) * fastest)
    is_worth = least < now or predicted[now] > (1 + 2 * AS_FAST) * fastest
    chosen = least if is_worth else now
    table = ", ".join(f"{staleness:g}: {seconds:.3g} s" for staleness, seconds in predicted.items())
    return StalenessChoice(
        chosen,
        now,
        f"predicted steps by staleness {table}: {chosen:g} is the least that is about as fast as the fastest",
        {f"{staleness:g}": round(seconds, 6) for staleness, seconds in predicted.items()},
    )


# ── forecast ──────────────────────────────────────────────────────────────────────────────────
# Gains of single changes of a run, predicted by a plan fitted to it.

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
    """Seconds of a step in the fitted plan."""
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
