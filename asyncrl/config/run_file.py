"""
Reads a run file: defaults < TOML file < ``--set a.b=value``, checked and returned as a `Config`.

`explain` gives the origin of each value.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from asyncrl.config.check import check
from asyncrl.config.correction import resolved
from asyncrl.config.sections import Config, leaves
from asyncrl.config.toml import convert, put, read, split_override


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
    return decode(read_raw(path, overrides))


def read_raw(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a run file with ``overrides`` as a nested dict, unchecked; raises `ConfigError` if it is not TOML."""
    raw = read(path, "config file")
    for override in overrides:
        put(raw, *split_override(override, SHORTHANDS), where=f"--set {override}")
    return raw


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
        lines.append(f"\n[{'.'.join(map(_toml_key, where))}]")
    lines.extend(f"{_toml_key(key)} = {_toml(value)}" for key, value in values.items())
    for key, value in table.items():
        if isinstance(value, dict):
            _write_table(value, (*where, key), lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml_key(key)} = {_toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, str):
        return _toml_string(value)
    return repr(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _toml_string(text: str) -> str:
    """Quoted string: JSON's escapes are valid TOML, but TOML also requires DEL to be escaped."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
