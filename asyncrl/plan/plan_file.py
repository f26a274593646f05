"""Reads and checks a plan file: TOML, as strict as a run file. Precedence: defaults < file < ``--set a.b=value``."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.checks.check import check as check_run
from asyncrl.config.config import leaves
from asyncrl.config.toml import convert, put, read, split_override
from asyncrl.errors import ConfigError
from asyncrl.plan.sections import LengthNumbers, Plan
from asyncrl.plan.speeds import decode_line

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
    for key, value in leaves(msgspec.to_builtins(plan)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}: expected a finite number")
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
