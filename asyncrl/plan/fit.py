"""
A plan fitted to the speeds of a run.

    times, metrics ─▶ Observed ─▶ plan ◀─ pace of the engines ─ the broker's rules in a simulated cluster, step time

A decode step takes ``a + b running`` seconds. Summed over any stretch of sampling that is ``a`` times its steps plus
``b`` times its tokens: both are found by least squares over the steps of the run and its rollouts. Both are then scaled
such that the plan's step time is the measured one.
"""

import math
import operator
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.sections.schedule import Schedule
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.times import TimesLine
from asyncrl.observe.why.attribution import Attribution, attribute
from asyncrl.plan.inputs import inputs
from asyncrl.plan.lengths import Lengths, read_samples
from asyncrl.plan.sections import Horizon, LengthNumbers, Plan, Publish, Reward, Rollout, Trainer, TrainerSpeed
from asyncrl.plan.simulate import simulate

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


class Sampling(Struct, frozen=True):
    """One rollout in one stretch of a run: what its engine sampled, and the seconds it took."""

    seconds: float
    decode_steps: float
    tokens: float


class Observed(Struct, frozen=True, kw_only=True):
    """Speeds of a run under one schedule. Each rollout counts as a device, and the trainer as one."""

    step_s: float
    rollouts: int
    slots: int
    samplings: list[Sampling]
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
    """The same in the fitted plan."""

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


def observed(record: RunRecord, config: Config, lines: Sequence[TimesLine]) -> Observed | None:
    """Speeds in the steps after the first of ``lines``; None if nothing was measured in them, or devices take turns."""
    steady = attribute(lines, is_steady=True)
    num_steps = lines[-1].step - lines[0].step if lines else 0
    if num_steps < 1 or not steady.names("rollout") or not steady.names("trainer") or config.rollout.colocated:
        return None
    trained = sum(float(line.get("tokens") or 0.0) for line in record.metrics[-num_steps:])
    samplings = [
        Sampling(node.seconds["sampling"], node.decode_steps, node.tokens)
        for line in lines[1:]
        for node in line.nodes.values()
        if node.role == "rollout" and node.decode_steps > 0 and node.seconds.get("sampling", 0.0) > 0
    ]
    if not samplings:
        return None
    grading_s = sum(steady.nodes[name].seconds.get("grading", 0.0) for name in steady.names("reward"))
    return Observed(
        step_s=steady.span_s / num_steps,
        rollouts=len(steady.names("rollout")),
        slots=config.rollout.slots,
        samplings=samplings,
        trained_per_s=max(trained, 1e-6) / _trainer_s(steady),
        publish_s=record.mean("receive_s") or 0.0,
        pause_s=record.mean("pause_s") or 0.0,
        graders=len(steady.names("reward")),
        verdict_s=grading_s / steady.verdicts if steady.verdicts else 0.0,
    )


def fit(seen: Observed, schedule: Schedule, lengths: Lengths) -> Fit:
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


def decode_seconds(samplings: Sequence[Sampling]) -> tuple[float, float]:
    """
    Seconds of a decode step: those of every one, and those for each completion in it, neither below 0.

    The sum of all seconds is kept, and divided by the share that fits the single stretches best.
    """
    seconds, steps, tokens = (sum(getattr(each, name) for each in samplings) for name in Sampling.__struct_fields__)
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


def _plan(seen: Observed, schedule: Schedule, fixed_s: float, each_s: float) -> Plan:
    most = max(seen.slots, 2)
    plan = Plan(
        devices=seen.rollouts + 1,
        lengths=LengthNumbers(samples="samples"),
        rollout=Rollout(
            devices=seen.rollouts,
            slots=seen.slots,
            decode=[(running, running / (fixed_s + each_s * running)) for running in (1.0, float(most))],
            prefill_tokens_per_s=NO_PREFILL,
            kv="keep",
        ),
        trainer=Trainer(speeds=[TrainerSpeed(devices=1, tokens_per_s=seen.trained_per_s)]),
        publish=Publish(seconds=seen.publish_s, pause_s=seen.pause_s),
        reward=Reward(seconds=seen.verdict_s, at_once=seen.graders),
        schedule=schedule,
    )
    versions = min(max(FEWEST_VERSIONS, plan.versions_with(COMPLETIONS)), MOST_VERSIONS)
    return replace(plan, horizon=Horizon(publishes=versions, warm_up=2))


def _trainer_s(steady: Attribution) -> float:
    """Seconds in which the trainer worked at steps."""
    node = steady.nodes[steady.names("trainer")[0]]
    return max(sum(node.seconds.get(name, 0.0) for name in ("training", "fetching", "checkpointing")), 1e-6)
