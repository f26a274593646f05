"""
Strict conversion of TOML to Structs: an unknown key is an error with a suggestion, and every error is one sentence.

    file ─read─▶ nested dict ◀─put─ ``--set a.b=value``          nested dict ─convert─▶ Struct
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from asyncrl.config.other_names import answer
from asyncrl.config.sections import Section, leaves
from asyncrl.errors import ConfigError

S = TypeVar("S", bound=Section)


def read(path: Path, what: str) -> dict[str, Any]:
    """
    Read a TOML file as a nested dict; ``what`` is the kind of file, such as "config file", for the error message.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no such {what}: {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def split_override(override: str, shorthands: Mapping[str, str]) -> tuple[str, Any]:
    """
    Key and value of ``section.key=value``. The value is TOML; text that is not TOML is a string.

    Raises:
        ConfigError: The key or the equals sign is missing.
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: expected section.key=value")
    key = shorthands.get(key, key)
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text


def put(raw: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set one value under its full key; raises `ConfigError`, naming ``where``, if a parent of the key is a value."""
    *parents, leaf = key.split(".")
    table = raw
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: {parent!r} is a value, not a section")
    table[leaf] = value


def convert(raw: Mapping[str, Any], kind: type[S]) -> S:
    """Convert a nested dict; raises `ConfigError` for an unknown or missing key, or a wrong type or range."""
    _refuse_unknown(raw, kind, (), kind)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_sentence(str(error), raw, kind)) from error


def _refuse_unknown(
    raw: Mapping[str, Any], section: type[Section], where: tuple[str, ...], root: type[Section]
) -> None:
    hints = get_type_hints(section)
    for key, value in raw.items():
        name = ".".join((*where, key))
        if key not in hints:
            full, _ = next(leaves({name: value}))
            raise ConfigError(f"unknown key {full!r}: {_hint(full, where, hints, root)}")
        if kind := _section_in(hints[key]):
            for part in value if isinstance(value, list) else [value]:
                if not isinstance(part, Mapping):
                    raise ConfigError(f"{name} is a section, got {part!r}")
                _refuse_unknown(part, kind, (*where, key), root)


def _section_in(kind: Any) -> type[Section] | None:
    """Section type of a field, or of the items of a list field; None for a plain value."""
    kinds = [kind, *get_args(kind)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _fields(section: type[Section], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, kind in get_type_hints(section).items():
        yield f"{where}{key}", kind
        if inner := _section_in(kind):
            yield from _fields(inner, f"{where}{key}.")


def _hint(name: str, where: tuple[str, ...], known: Mapping[str, Any], root: type[Section]) -> str:
    """Suggestion for the full key ``name``, whose section ``where`` has the keys ``known``."""
    if answered := answer(name, dict(_fields(root))):
        return answered
    if close := _meant(name.rpartition(".")[2], where, root):
        return f"did you mean {close!r}?"
    return f"expected one of: {', '.join(known)}"


def _meant(key: str, where: tuple[str, ...], root: type[Section]) -> str | None:
    """Nearest full key. The right name in a wrong section is preferred: people forget the section more often."""
    full_names = [full for full, _ in _fields(root)]
    elsewhere = {full.rpartition(".")[2]: full for full in reversed(full_names)}
    if key in elsewhere:
        return elsewhere[key]
    here = [full for full in full_names if full.startswith("".join(f"{part}." for part in where))]
    if close := difflib.get_close_matches(".".join((*where, key)), here, n=1):
        return close[0]
    return next((elsewhere[close] for close in difflib.get_close_matches(key, elsewhere, n=1)), None)


def _sentence(error: str, raw: Mapping[str, Any], root: type[Section]) -> str:
    """msgspec's ``Expected `int` >= 1 - at `$.run.steps``` as ``run.steps: expected `int` >= 1, got 0``."""
    what, _, where = error.partition(" - at `$")
    key = where.strip("`").lstrip(".")
    if "missing required field" in what:
        missing = what.rpartition("`")[0].rpartition("`")[2]
        return f"missing key {'.'.join(filter(None, (key, missing)))!r}: it has no default"
    problem = what[0].lower() + what[1:]
    if "[...]" in key:  # A table with arbitrary keys: msgspec does not name the key.
        return f"{key}: {problem}"
    value = _at(raw, key)
    if what.startswith("Invalid enum value") and (kind := dict(_fields(root)).get(re.sub(r"\[\d+\]", "", key))):
        return f"{key}: expected one of {', '.join(map(repr, get_args(kind)))}, got {value!r}"
    return f"{key}: {problem.partition(', got')[0]}, got {value!r}"


def _at(raw: Any, key: str) -> Any:
    """Value at a path such as ``many[0].colour``."""
    for part in re.findall(r"[^.\[\]]+", key):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    return raw
