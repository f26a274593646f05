"""
Reads a run file: defaults < TOML file < ``--set a.b=value``, checked and returned as a `Config`.

`explain` gives the origin of each value.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from asyncrl.config.checks.check import check
from asyncrl.config.config import Config, leaves
from asyncrl.config.correction import resolved
from asyncrl.config.meanings import meanings
from asyncrl.config.toml import convert, put, read, split_override
from asyncrl.config.words import value_in_words
from asyncrl.errors import ConfigError
from asyncrl.files.toml_text import toml_key, toml_value


class Origin(Struct, frozen=True):
    """A value and its source."""

    key: str
    value: Any
    source: str
    """
    ``default``, the name of the file, ``--set``, ``preset`` for a value set by a correction preset, or ``run.epochs``
    for the steps that follow from it.
    """


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """
    Read and check a run file.

    Args:
        overrides: ``"section.key=value"``; the value is TOML, and text that is not TOML is a string.

    Raises:
        ConfigError: The file cannot be read, or `decode` refuses it.
    """
    return decode(read_raw(Path(path), overrides))


def read_raw(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a run file with ``overrides`` as a nested dict, unchecked; raises `ConfigError` if it is not TOML."""
    raw = read(path, "config file")
    for override in overrides:
        override_one(raw, override)
    return raw


def overridden(raw: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Apply every ``--set`` to a nested dict, and convert it. Raises as `load_config`."""
    for override in overrides:
        override_one(raw, override)
    return decode(raw)


def override_one(raw: dict[str, Any], override: str) -> None:
    """Apply one ``--set``; a length of the run replaces the other one of the file. Raises as `load_config`."""
    key, value = split_override(override, SHORTHANDS)
    put(raw, key, value, where=f"--set {override}")
    if key in LENGTHS:
        for other in LENGTHS - {key}:
            raw["run"].pop(other.removeprefix("run."), None)


def decode(raw: dict[str, Any]) -> Config:
    """
    Convert a nested dict to a `Config` and check it.

    Raises:
        ConfigError: A key is unknown or missing, a value has the wrong type or range, or values contradict each other.
    """
    config = convert(raw, Config, "; `asyncrl init` writes a run file that has it")
    if {"steps", "epochs"} <= raw.get("run", {}).keys():
        raise ConfigError(
            f"run.steps is {config.run.steps} and run.epochs is {config.run.epochs:g}: both say how long to train; "
            f"remove one"
        )
    check(config)
    return config


def explain(
    path: Path, overrides: Sequence[str] = (), resolve_steps: Callable[[Config], Config] = lambda config: config
) -> list[Origin]:
    """Every effective value, with its source; ``resolve_steps`` turns ``run.epochs`` into steps."""
    config = load_config(path, overrides)
    given = dict(leaves(msgspec.to_builtins(config)))
    in_file = dict(leaves(read(path, "config file")))
    in_set = {split_override(override, SHORTHANDS)[0] for override in overrides}
    has_epochs = config.run.epochs is not None
    steps = resolve_steps(config).run.steps
    applied = _without_preset(structs.replace(config, run=structs.replace(config.run, steps=steps)))

    def source(key: str, value: Any) -> str:
        if has_epochs and key == "run.steps":
            return "run.epochs"
        if value != given[key]:
            return "preset"
        if any(key == k or key.startswith(k + ".") for k in in_set):
            return "--set"
        if any(key == k or key.startswith(k + ".") or k.startswith(key + ".") for k in in_file):
            return path.name
        return "default"

    return [Origin(key, value, source(key, value)) for key, value in leaves(msgspec.to_builtins(applied))]


def changes(config: Config) -> list[str]:
    """Line ``key = value`` for each setting without its default value, in the order of a run file."""
    known = meanings()
    return [
        f"{key} = {value_in_words(value)}"
        for key, value in leaves(msgspec.to_builtins(config))
        if key not in known or known[key].is_required or value != msgspec.to_builtins(known[key].default)
    ]


def to_toml(config: Config) -> str:
    """TOML text of a config, as stored in the run directory; `load_config` reads it back to an equal config."""
    lines: list[str] = []
    values = msgspec.to_builtins(config)
    if config.run.epochs is not None:
        del values["run"]["steps"]
    _write_table(values, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _without_preset(config: Config) -> Config:
    """Config whose correction has the preset's settings filled in and keeps the preset's name."""
    correction = config.algorithm.correction
    applied = structs.replace(resolved(correction), preset=correction.preset)
    return structs.replace(config, algorithm=structs.replace(config.algorithm, correction=applied))


SHORTHANDS = {"seed": "run.seed", "steps": "run.steps", "name": "run.name", "staleness": "schedule.staleness"}
"""Short forms of frequent keys, for ``--set`` only."""
LENGTHS = {"run.steps", "run.epochs"}
"""Settings of which exactly one gives the length of the run."""


def _write_table(table: dict[str, Any], where: tuple[str, ...], lines: list[str]) -> None:
    values = {k: v for k, v in table.items() if v is not None and not isinstance(v, dict)}  # TOML has no null.
    if where and (values or not table):
        lines.append(f"\n[{'.'.join(map(toml_key, where))}]")
    lines.extend(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())
    for key, value in table.items():
        if isinstance(value, dict):
            _write_table(value, (*where, key), lines)
