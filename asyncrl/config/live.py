"""
Settings that may change: those marked `LIVE` in `sections` while a run goes on (`asyncrl set`), more of them between
two starts.

    "trainer.lr=1e-4" ─assigned─▶ {"trainer.lr": 0.0001}, checked with all other settings ─with_values─▶ Config
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct, structs

from asyncrl.config.config import Config, leaves
from asyncrl.config.run_file import SHORTHANDS, decode
from asyncrl.config.sections.schedule import Schedule
from asyncrl.config.sections.section import LIVE
from asyncrl.config.toml import put, refuse_unknown, split_override
from asyncrl.errors import ConfigError

Value = bool | int | float | str


@cache
def live_keys() -> tuple[str, ...]:
    """Full keys of all live settings, in the order of a run file."""
    return tuple(_live_keys(Config, ""))


def assigned(config: Config, start: Config, assignments: Sequence[str]) -> dict[str, Value]:
    """
    Values of ``KEY=VALUE`` texts that differ from those of ``config``, after every check.

    Args:
        config: Current configuration of the run.
        start: Configuration that the run was started with, by which its nodes made room.

    Raises:
        ConfigError: A key is unknown or not live, a value is not valid, or it contradicts another setting.
    """
    raw = msgspec.to_builtins(config)
    raw["run"].pop("epochs" if config.run.epochs is None else "steps")
    given: dict[str, Value] = {}
    for text in assignments:
        key, value = split_override(text, SHORTHANDS)
        alone: dict[str, Any] = {}
        put(alone, key, value, where=text)
        refuse_unknown(alone, Config)
        if key not in live_keys():
            longer = "; `asyncrl resume RUN --steps N` makes a run longer that has ended" if key == "run.steps" else ""
            can = ", ".join(live_keys())
            raise ConfigError(f"{key} cannot be set while the run goes on; these can: {can}{longer}")
        put(raw, key, value, where=text)
        given[key] = value
    changed = decode(raw)
    _check_room(changed, start)
    _check_reach(config, changed)
    values = {key: value_of(changed, key) for key in given}
    return {key: value for key, value in values.items() if value != value_of(config, key)}


def with_values(config: Config, values: Mapping[str, Value]) -> Config:
    """``config`` with other values of live settings, which were checked when they were assigned."""
    for key, value in values.items():
        section, name = key.split(".")
        changed = structs.replace(getattr(config, section), **{name: value})
        config = structs.replace(config, **{section: changed})
    return config


def schedule_with(schedule: Schedule, values: Mapping[str, Value]) -> Schedule:
    """``schedule`` with those of the values that are its own."""
    own = {key.removeprefix("schedule."): value for key, value in values.items() if key.startswith("schedule.")}
    return structs.replace(schedule, **own)


def value_of(config: Config, key: str) -> Value:
    """Value of a live setting."""
    section, name = key.split(".")
    value: Value = getattr(getattr(config, section), name)
    return value


def _check_room(changed: Config, start: Config) -> None:
    most = start.sampling.max_tokens
    if changed.sampling.max_tokens > most:
        raise ConfigError(
            f"sampling.max_tokens is {changed.sampling.max_tokens}, but engines made room for {most}, with which the "
            f"run was started: give at most {most}"
        )


def _check_reach(config: Config, changed: Config) -> None:
    """Keep the reach of ``windowed``: the bound on staleness of groups that are open already depends on it."""
    if changed.schedule.reach != config.schedule.reach:
        raise ConfigError(
            "schedule.staleness cannot be set while the run goes on with schedule.order = 'windowed' and no "
            "order_window, because the reach follows it: start a run with order_window to change it later"
        )


def _live_keys(section: type[Struct], where: str) -> Iterator[str]:
    for name, kind in get_type_hints(section, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _live_keys(kind, f"{where}{name}.")
        elif LIVE in get_args(kind):
            yield f"{where}{name}"


# ── changes ───────────────────────────────────────────────────────────────────────────────────
# Settings that may change between two starts of one run.

MAY_CHANGE = (
    "run.dir", "run.name", "run.share_with_group", "run.skip_steps", "run.stop_when", "broker.", "supervisor.",
    "trackers.", "models", "checkpoint.", "rollout.", "weights.", "reward.workers", "reward.timeout_s",
    "trainer.nodes", "trainer.min_nodes", "trainer.wait_s", "trainer.ranks", "trainer.shard_size",
    "trainer.sequence_parallel", "trainer.expert_parallel", "trainer.collective_timeout_s", "evaluation.answers",
)  # fmt: skip
"""Settings, and beginnings of settings, that do not change what the records of a run mean."""
STEPS = "run.steps"


def changed(recorded: Config, now: Config) -> dict[str, object]:
    """
    Values that differ from those the run was recorded with, by setting.

    Raises:
        ConfigError: One of them may not change: the records would mean something else.
    """
    before, after = (dict(leaves(msgspec.to_builtins(config))) for config in (recorded, now))
    differing = [
        key for key in (*before, *(key for key in after if key not in before)) if before.get(key) != after.get(key)
    ]
    for key in differing:
        if key == STEPS:
            if now.run.steps < recorded.run.steps:
                raise ConfigError(
                    f"run.steps is {now.run.steps}, but this run has {recorded.run.steps} by now: a run can be "
                    f"extended, not shortened; put {recorded.run.steps} back, or end it early by run.stop_when"
                )
        elif not key.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{key} is {after.get(key)!r}, but this run was created with {before.get(key)!r}: give the same value, "
                f"or start a new run in another --run-dir"
            )
    return {key: after.get(key) for key in differing}
