"""
Reads a run file: defaults < TOML file < ``--set a.b=value``, checked and returned as a `Config`.

`explain` gives the origin of each value.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from asyncrl.config.check import check
from asyncrl.config.correction import resolved
from asyncrl.config.sections import Config, leaves
from asyncrl.config.toml import convert, put, read, split_override
from asyncrl.files.toml_text import toml_key, toml_value


class Origin(Struct, frozen=True):
    """A value and its source."""

    key: str
    value: Any
    source: str
    """``default``, the name of the file, ``--set``, or ``preset`` for a value set by a correction preset."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """
    Read and check a run file.

    Args:
        overrides: ``"section.key=value"``; the value is TOML, and text that is not TOML is a string.

    Raises:
        ConfigError: The file cannot be read, or `decode` refuses it.
    """
    raw = read(path, "config file")
    for override in overrides:
        put(raw, *split_override(override, SHORTHANDS), where=f"--set {override}")
    return decode(raw)


def decode(raw: dict[str, Any]) -> Config:
    """
    Convert a nested dict to a `Config` and check it.

    Raises:
        ConfigError: A key is unknown or missing, a value has the wrong type or range, or values contradict each other.
    """
    config = convert(raw, Config)
    check(config)
    return config


def explain(path: Path, overrides: Sequence[str] = ()) -> list[Origin]:
    """Every value that applies, with its source."""
    config = load_config(path, overrides)
    given = dict(leaves(msgspec.to_builtins(config)))
    in_file = dict(leaves(read(path, "config file")))
    in_set = {split_override(override, SHORTHANDS)[0] for override in overrides}
    applied = leaves(msgspec.to_builtins(_without_preset(config)))

    def source(key: str, value: Any) -> str:
        if value != given[key]:
            return "preset"
        if any(key == k or key.startswith(k + ".") for k in in_set):
            return "--set"
        if any(key == k or key.startswith(k + ".") or k.startswith(key + ".") for k in in_file):
            return path.name
        return "default"

    return [Origin(key, value, source(key, value)) for key, value in applied]


def to_toml(config: Config) -> str:
    """TOML text of a config, as stored in the run directory; `load_config` reads it back to an equal config."""
    lines: list[str] = []
    _write_table(msgspec.to_builtins(config), (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _without_preset(config: Config) -> Config:
    """Config whose correction has the preset's settings filled in and keeps the preset's name."""
    correction = config.algorithm.correction
    applied = structs.replace(resolved(correction), preset=correction.preset)
    return structs.replace(config, algorithm=structs.replace(config.algorithm, correction=applied))


SHORTHANDS = {"seed": "run.seed", "steps": "run.steps", "name": "run.name", "staleness": "schedule.staleness"}
"""Short forms of frequent keys, for ``--set`` only."""


def _write_table(table: dict[str, Any], where: tuple[str, ...], lines: list[str]) -> None:
    values = {k: v for k, v in table.items() if v is not None and not isinstance(v, dict)}  # TOML has no null.
    if where and (values or not table):
        lines.append(f"\n[{'.'.join(map(toml_key, where))}]")
    lines.extend(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())
    for key, value in table.items():
        if isinstance(value, dict):
            _write_table(value, (*where, key), lines)
