"""
A run is one TOML file: defaults < file < ``--set a.b=value``, and out comes a checked `Config`.

An unknown key is an error with a suggestion. `explain` tells where each value came from.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from asyncrl.config.check import check
from asyncrl.config.presets import resolved
from asyncrl.config.sections import Config, leaves
from asyncrl.config.toml import convert, put, read, split_override


class Origin(Struct, frozen=True):
    """One value and where it came from."""

    key: str
    value: Any
    source: str
    """``default``, the file, ``--set``, or the ``preset`` that stands for it."""


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """
    Read and check a run file.

    Args:
        path: TOML.
        overrides: ``"section.key=value"``; the value is TOML, and a bare word that is not TOML is a string.

    Raises:
        ConfigError: One sentence: what, which, expected and got.
    """
    return decode(_merged(path, overrides))


def decode(raw: dict[str, Any]) -> Config:
    """
    A checked `Config` of a nested dict.

    Raises:
        ConfigError: An unknown key, a wrong type or range, or values that contradict each other.
    """
    config = convert(raw, Config)
    check(config)
    return config


def explain(path: Path, overrides: Sequence[str] = ()) -> list[Origin]:
    """Every value as it applies, with its source."""
    config = load(path, overrides)
    given = dict(leaves(msgspec.to_builtins(config)))
    in_file = dict(leaves(_read(path)))
    in_set = {key for key, _ in map(_split, overrides)}
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
    """As it is kept in the run directory; `load` reads it back to an equal config."""
    lines: list[str] = []
    _write_table(msgspec.to_builtins(config), (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _without_preset(config: Config) -> Config:
    """With what a preset stands for in its place, but for its name."""
    correction = config.algorithm.correction
    applied = structs.replace(resolved(correction), preset=correction.preset)
    return structs.replace(config, algorithm=structs.replace(config.algorithm, correction=applied))


def _merged(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    raw = _read(path)
    for override in overrides:
        put(raw, *_split(override), where=f"--set {override}")
    return raw


def _read(path: Path) -> dict[str, Any]:
    return read(path, "config file")


SHORTHANDS = {"seed": "run.seed", "steps": "run.steps", "name": "run.name", "staleness": "schedule.staleness"}
"""Keys people set most, without their section. Only for ``--set``."""


def _split(override: str) -> tuple[str, Any]:
    return split_override(override, SHORTHANDS)


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
    """JSON's escapes are TOML's too, but TOML wants DEL escaped as well."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
