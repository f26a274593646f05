"""
TOML into Structs, strictly: an unknown key is an error with a suggestion, and every error is one sentence.

    file ─read─▶ nested dict ◀─put─ ``--set a.b=value``          nested dict ─convert─▶ Struct
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from asyncrl.config.sections import Section, leaves
from asyncrl.config.verl_names import ours
from asyncrl.errors import ConfigError

S = TypeVar("S", bound=Section)


def read(path: Path, what: str) -> dict[str, Any]:
    """
    A file as a nested dict.

    Args:
        what: It is, for the message if it is not there.

    Raises:
        ConfigError: It is not there, or not TOML.
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
    Key and value of ``section.key=value``. The value is TOML, and a bare word that is not TOML is a string.

    Raises:
        ConfigError: There is no key, or no value.
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
    """
    Set one value under its full key.

    Args:
        where: It comes from, for the message.

    Raises:
        ConfigError: What should be a section is a value.
    """
    *parents, leaf = key.split(".")
    table = raw
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: {parent!r} is a value, not a section")
    table[leaf] = value


def convert(raw: Mapping[str, Any], kind: type[S]) -> S:
    """
    The Struct that a nested dict describes.

    Raises:
        ConfigError: An unknown key, or a wrong type or range.
    """
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
    """The section that a field, or each part of a list, is; None for a value."""
    kinds = [kind, *get_args(kind)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _fields(section: type[Section], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, kind in get_type_hints(section).items():
        yield f"{where}{key}", kind
        if inner := _section_in(kind):
            yield from _fields(inner, f"{where}{key}.")


def _hint(name: str, where: tuple[str, ...], known: Mapping[str, Any], root: type[Section]) -> str:
    """What to write in the place of ``name``, which is not ``known`` in the section ``where``."""
    if (renamed := ours(name)) in dict(_fields(root)):
        return f"that is verl's name; here it is {renamed!r}"
    if close := _meant(name.rpartition(".")[2], where, root):
        return f"did you mean {close!r}?"
    return f"expected one of: {', '.join(known)}"


def _meant(key: str, where: tuple[str, ...], root: type[Section]) -> str | None:
    """
    The full name a person may have meant.

    The right name in a wrong section comes first: people forget the section more often than the name.
    """
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
    said = what[0].lower() + what[1:]
    if "[...]" in key:  # Inside a table of any keys, of which msgspec does not say which one.
        return f"{key}: {said}"
    value = _at(raw, key)
    if what.startswith("Invalid enum value") and (kind := dict(_fields(root)).get(re.sub(r"\[\d+\]", "", key))):
        return f"{key}: expected one of {', '.join(map(repr, get_args(kind)))}, got {value!r}"
    return f"{key}: {said.partition(', got')[0]}, got {value!r}"


def _at(raw: Any, key: str) -> Any:
    """The value at ``many[0].colour``."""
    for part in re.findall(r"[^.\[\]]+", key):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    return raw
