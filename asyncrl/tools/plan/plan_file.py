"""Reads and checks a plan file: TOML, as strict as a run file. Precedence: defaults < file < ``--set a.b=value``."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.config.checks.check import check as check_run
from asyncrl.config.checks.check import refuse_infinite
from asyncrl.config.toml import convert, put, read, split_override
from asyncrl.errors import ConfigError
from asyncrl.tools.plan.lengths import Z99, Lengths, Lognormal, PiecewiseLine, TrainingSpeed, decode_line, read_samples
from asyncrl.tools.plan.sections import LengthNumbers, Plan
from asyncrl.tools.plan.simulated.rollout import generate_s

SHORTHANDS = {"staleness": "schedule.staleness", "seed": "horizon.seed"}
MIDDLES = ("mean", "median", "synchronous_generate_s")


def load(path: Path, overrides: Sequence[str] = ()) -> Plan:
    """Read and check a plan; overrides are ``section.key=value``, in TOML or a bare string. Raises as `decode`."""
    raw = read(path, "plan")
    if "model" in raw:
        raise ConfigError(f"{path} is a run file, not a plan: add --memory to predict its memory, or give a plan")
    lengths = raw.get("lengths")
    if isinstance(lengths, dict) and isinstance(samples := lengths.get("samples"), str):
        lengths["samples"] = str(path.parent / samples)
    for override in overrides:
        put(raw, *split_override(override, SHORTHANDS), where=f"--set {override}")
    return decode(raw)


def decode(raw: dict[str, Any]) -> Plan:
    """Checked `Plan` of a nested dict. `ConfigError`: unknown key, wrong type or range, or contradicting values."""
    plan = convert(raw, Plan)
    check(plan)
    return plan


def changed(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """Copy of a plan with some values changed, given by their full keys. Raises as `decode`."""
    raw = msgspec.to_builtins(plan)
    for key, value in changes.items():
        put(raw, SHORTHANDS.get(key, key), value, f"{key} = {value!r}")
    return decode(raw)


def check(plan: Plan) -> None:
    refuse_infinite(plan)
    _check_split(plan)
    _check_lengths(plan.lengths)
    if not plan.rollout.decode or not plan.trainer.speeds:
        missing = "trainer.speeds" if plan.rollout.decode else "rollout.decode"
        raise ConfigError(f"{missing} is empty: give at least one measured point")
    decode_line(plan.rollout.decode)
    for speed in plan.trainer.speeds:
        by_groups = bool(speed.groups), bool(speed.seconds)
        if by_groups not in {(True, True), (False, False)} or all(by_groups) == bool(speed.tokens_per_s):
            raise ConfigError(
                f"trainer.speeds of {speed.devices} devices: expected either tokens_per_s, or both groups and seconds"
            )
    if plan.schedule.filter != "none":
        raise ConfigError(
            f"schedule.filter is {plan.schedule.filter!r}, but a plan has no rewards to filter by; remove it"
        )
    check_run(plan.run_config(1))  # Refuses a schedule that a run would refuse, with the same message.
    for measured in plan.measured:
        if measured.set:
            raw = msgspec.to_builtins(plan) | {"measured": []}
            for key, value in measured.set.items():
                put(raw, key, value, f"measured {measured.name!r}")
            decode(raw)


def _check_split(plan: Plan) -> None:
    rollout = plan.rollout
    if rollout.devices >= plan.devices:
        raise ConfigError(
            f"rollout.devices is {rollout.devices} of {plan.devices} devices: at least one has to be left to train"
        )
    if rollout.devices % rollout.devices_per_replica or plan.devices < rollout.devices_per_replica:
        raise ConfigError(
            f"rollout.devices is {rollout.devices}, no multiple of rollout.devices_per_replica = "
            f"{rollout.devices_per_replica}"
        )
    if (step := plan.search.multiple_of) % rollout.devices_per_replica:
        raise ConfigError(
            f"search.multiple_of is {step}, no multiple of rollout.devices_per_replica = {rollout.devices_per_replica}"
        )


def _check_lengths(lengths: LengthNumbers) -> None:
    given = {key for key in (*MIDDLES, "samples", "sigma", "p99") if getattr(lengths, key)}
    middles = given & {*MIDDLES, "samples"}
    if len(middles) != 1:
        raise ConfigError(
            f"lengths: expected exactly one of samples, {', '.join(MIDDLES)}, got {_listed(middles) or 'none'}"
        )
    spread = given - middles
    allowed = {"samples": set(), "median": {"sigma", "p99"}}.get(next(iter(middles)), {"sigma"})
    if not spread <= allowed or len(spread) > 1:
        raise ConfigError(
            f"lengths: beside {_listed(middles)} expected {_listed(allowed, ' or ') or 'no spread'}, "
            f"got {_listed(spread)}"
        )
    if 0 < lengths.p99 < lengths.median:
        raise ConfigError(f"lengths.p99 is {lengths.p99:g}, below lengths.median = {lengths.median:g}")
    if lengths.samples and lengths.prompt_share:
        raise ConfigError("lengths.prompt_share is not read with lengths.samples, whose groups show it; remove it")


def _listed(names: set[str], between: str = ", ") -> str:
    return between.join(sorted(names))


# ── inputs ────────────────────────────────────────────────────────────────────────────────────
# Inputs of a simulation, derived from a plan: the length distribution and the speed functions.

CLOSE = 1e-3
"""Relative tolerance of the fit to the measured seconds."""
HALVINGS = 40


class Inputs(Struct, frozen=True):
    lengths: Lengths
    step_s: PiecewiseLine
    """Seconds per decode step as a function of the completions running on a replica."""
    training: TrainingSpeed


def inputs(plan: Plan, lengths: Lengths | None = None) -> Inputs:
    """
    Derive a plan's inputs; a fit takes seconds.

    Args:
        lengths: Those of the plan, if they are known already.

    Raises:
        ConfigError: No median fits.
        DataError: The lengths cannot be read.
    """
    step_s = decode_line(plan.rollout.decode)
    if lengths is None:
        lengths = _lengths(plan, step_s)
    return Inputs(lengths, step_s, _training(plan, lengths))


def _lengths(plan: Plan, step_s: PiecewiseLine) -> Lengths:
    given = plan.lengths
    if given.samples:
        return read_samples(Path(given.samples))
    if given.synchronous_generate_s:
        return _fitted(plan, step_s)
    if given.p99:
        return _lognormal(plan, given.median, math.log(given.p99 / given.median) / Z99)
    median = given.median or given.mean / math.exp(given.sigma**2 / 2)
    return _lognormal(plan, median, given.sigma)


def _lognormal(plan: Plan, median: float, sigma: float) -> Lognormal:
    return Lognormal(math.log(median), sigma, plan.lengths.max_tokens, plan.lengths.prompt_share)


def _fitted(plan: Plan, step_s: PiecewiseLine) -> Lognormal:
    """Bisect for the median with which the baseline generates for the measured seconds, which grow with the median."""
    wanted_s, sigma = plan.lengths.synchronous_generate_s, plan.lengths.sigma
    low, high = 0.0, math.log(plan.lengths.max_tokens)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lengths = _lognormal(plan, math.exp(middle), sigma)
        seconds = generate_s(plan, lengths, step_s)
        if abs(seconds - wanted_s) <= CLOSE * wanted_s:
            return lengths
        low, high = (middle, high) if seconds < wanted_s else (low, middle)
    raise ConfigError(
        f"lengths.synchronous_generate_s is {wanted_s:g} s, but with these decode speeds and sigma = {sigma:g} the "
        f"baseline takes {seconds:.4g} s at the nearest median, {lengths.mean:.0f} tokens on average; change "
        f"rollout.decode, sigma or max_tokens"
    )


def _training(plan: Plan, lengths: Lengths) -> TrainingSpeed:
    tokens = lengths.mean + plan.rollout.prompt_tokens
    points = []
    for speed in plan.trainer.speeds:
        trained = speed.groups * plan.schedule.group_size * tokens
        points.append((speed.devices, 1 / speed.tokens_per_s if speed.tokens_per_s else speed.seconds / trained))
    return TrainingSpeed(points)
