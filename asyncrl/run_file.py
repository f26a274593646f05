"""
A run is one TOML file: defaults < file < ``--set a.b=value``, and out comes a checked `Config`.

An unknown key is an error with a suggestion. `explain` tells where each value came from.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from asyncrl.config import Config, Section, check, leaves
from asyncrl.errors import ConfigError


class Origin(Struct, frozen=True):
    """One value and where it came from."""

    key: str
    value: Any
    source: str
    """``default``, the file, or ``--set``."""


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
    _refuse_unknown(raw, Config, ())
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_sentence(str(error))) from error
    check(config)
    return config


def explain(path: Path, overrides: Sequence[str] = ()) -> list[Origin]:
    """Every value of the resolved config, with its source."""
    config = load(path, overrides)
    in_file = dict(leaves(_read(path)))
    in_set = {key for key, _ in map(_split_override, overrides)}
    resolved = leaves(msgspec.to_builtins(config))

    def source(key: str) -> str:
        if any(key == k or key.startswith(k + ".") for k in in_set):
            return "--set"
        if any(key == k or key.startswith(k + ".") or k.startswith(key + ".") for k in in_file):
            return path.name
        return "default"

    return [Origin(key, value, source(key)) for key, value in resolved]


def to_toml(config: Config) -> str:
    """As it is kept in the run directory; `load` reads it back to an equal config."""
    lines: list[str] = []
    _write_table(msgspec.to_builtins(config), (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _merged(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    raw = _read(path)
    for override in overrides:
        key, value = _split_override(override)
        *parents, leaf = key.split(".")
        table = raw
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {override}: {parent!r} is a value, not a section")
        table[leaf] = value
    return raw


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no such config file: {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


SHORTHANDS = {"seed": "run.seed", "steps": "run.steps", "name": "run.name", "staleness": "schedule.staleness"}
"""Keys people set most, without their section. Only for ``--set``."""


def _split_override(override: str) -> tuple[str, Any]:
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: expected section.key=value")
    key = SHORTHANDS.get(key, key)
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text


def _refuse_unknown(raw: dict[str, Any], section: type[Section], where: tuple[str, ...]) -> None:
    hints = get_type_hints(section)
    for key, value in raw.items():
        name = ".".join((*where, key))
        if key not in hints:
            close = _meant(key, where)
            hint = f"did you mean {close!r}?" if close else f"expected one of: {', '.join(hints)}"
            raise ConfigError(f"unknown key {name!r}: {hint}")
        kind = hints[key]
        if isinstance(kind, type) and issubclass(kind, Section):
            if not isinstance(value, dict):
                raise ConfigError(f"{name} is a section, got {value!r}")
            _refuse_unknown(value, kind, (*where, key))


def _fields(section: type[Section], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, kind in get_type_hints(section).items():
        yield f"{where}{key}", kind
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _fields(kind, f"{where}{key}.")


def _meant(key: str, where: tuple[str, ...]) -> str | None:
    """
    The full name a person may have meant.

    The right name in a wrong section comes first: people forget the section more often than the name.
    """
    full_names = [full for full, _ in _fields(Config)]
    elsewhere = {full.rpartition(".")[2]: full for full in reversed(full_names)}
    if key in elsewhere:
        return elsewhere[key]
    here = [full for full in full_names if full.startswith("".join(f"{part}." for part in where))]
    if close := difflib.get_close_matches(".".join((*where, key)), here, n=1):
        return close[0]
    return next((elsewhere[close] for close in difflib.get_close_matches(key, elsewhere, n=1)), None)


def _sentence(error: str) -> str:
    """msgspec's ``Expected `int` >= 1 - at `$.run.steps``` as ``run.steps: expected `int` >= 1``."""
    what, _, where = error.partition(" - at `$")
    key = where.strip("`").lstrip(".")
    if "missing required field" in what:
        missing = what.rpartition("`")[0].rpartition("`")[2]
        return f"missing key {'.'.join(filter(None, (key, missing)))!r}: it has no default"
    if what.startswith("Invalid enum value"):
        choices = ", ".join(map(repr, get_args(dict(_fields(Config))[key])))
        return f"{key}: expected one of {choices}, got {what.removeprefix('Invalid enum value ')}"
    return f"{key}: {what[0].lower()}{what[1:]}"


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
    if isinstance(value, str):
        return _toml_string(value)
    return repr(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _toml_string(text: str) -> str:
    """JSON's escapes are TOML's too, but TOML wants DEL escaped as well."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
