"""
Strict conversion of TOML to Structs: an unknown key is an error with a suggestion, and every error is one sentence.

    file ─read─▶ nested dict ◀─put─ ``--set a.b=value``          nested dict ─convert─▶ Struct
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from asyncrl.config.config import leaves
from asyncrl.config.sections.section import Section
from asyncrl.config.suggestions import fields, section_in, unknown
from asyncrl.errors import ConfigError, DataError, mistakes
from asyncrl.files.foreign import NoSuchFile, parse_toml, parsed, read_bytes, require_parts
from asyncrl.files.json_lines import toml_value
from asyncrl.foreign_text import shown
from asyncrl.similar_path import did_you_mean

S = TypeVar("S", bound=Section)
MAX_FILE = 1 << 20
"""Longest file in bytes; those that `asyncrl` writes have thousands."""
MAX_SHOWN = 200
"""Most characters of a key or a value in a message."""
MAX_UNKNOWN = 20
"""Most unknown keys that are named: the one that was meant is looked for by comparing all."""


def read(path: Path, what: str) -> dict[str, Any]:
    """
    Read a TOML file as a nested dict; ``what`` is the kind of file, such as "config file", for the error message.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not a {what}{did_you_mean(path / 'run.toml', _is_toml)}")
    try:
        content = read_bytes(path, MAX_FILE)
        text = parsed(lambda: content.decode("utf-8-sig"), shown(str(path)), "TOML", "save it as UTF-8")
        return parse_toml(text, shown(str(path)))
    except NoSuchFile as error:
        raise ConfigError(f"no such {what}: {path}{did_you_mean(path, _is_toml)}") from error


def _is_toml(path: Path) -> bool:
    return path.suffix == ".toml"


def split_override(override: str, shorthands: Mapping[str, str]) -> tuple[str, Any]:
    """
    Key and value of ``section.key=value``. The value is TOML; text that is not TOML is a string.

    Raises:
        ConfigError: The key or the equals sign is missing, or one of them is beyond the limits of foreign files.
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not key:
        raise ConfigError(f"--set {_told(override)}: expected section.key=value")
    key = shorthands.get(key, key)
    where = f"--set {shown(override, MAX_SHOWN)}"
    require_parts(key.count(".") + 1, where)
    try:
        found = parse_toml(f"value = {text}", where)
        return key, found["value"] if len(found) == 1 else text
    except DataError as error:
        if isinstance(error.__cause__, tomllib.TOMLDecodeError):
            return key, text
        raise


def put(raw: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set one value under its full key; raises `ConfigError`, naming ``where``, if a parent of the key is a value."""
    *parents, leaf = key.split(".")
    table = raw
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: {parent!r} is a value, not a section")
    table[leaf] = value


def convert(raw: Mapping[str, Any], kind: type[S], advice: str = "") -> S:
    """
    Convert a nested dict; ``advice`` ends the sentence about a section that is missing.

    Raises:
        ConfigError: Keys are unknown or missing, or values have a wrong type or range; of each section one is named.
    """
    refuse_unknown(raw, kind)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        found = list(_refusals(raw, kind)) or [str(error)]
        raise ConfigError(mistakes(_sentence(each, raw, kind, advice) for each in found)) from error


def _refusals(raw: Mapping[str, Any], kind: type[Section]) -> Iterator[str]:
    """Sentences of msgspec about each section, and each value beside them."""
    for field in msgspec.structs.fields(kind):
        if field.name not in raw:
            if field.required:
                yield f"missing required field `{field.name}`"
            continue
        try:
            msgspec.convert(raw[field.name], field.type)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$")
            yield f"{what} - at `$.{field.name}{where or '`'}"


def refuse_unknown(raw: Mapping[str, Any], kind: type[Section]) -> None:
    """Raise `ConfigError` for keys that ``kind`` does not have, each with the one that was probably meant."""
    if names := list(islice(_unknown(raw, kind), MAX_UNKNOWN)):
        raise unknown(names, kind)


def _unknown(raw: Mapping[str, Any], kind: type[Section], where: tuple[str, ...] = ()) -> Iterator[str]:
    """Full keys that ``kind`` does not have; ``raw`` is the part of a configuration at ``where``."""
    hints = get_type_hints(kind)
    for key, value in raw.items():
        name = ".".join((*where, key))
        if key not in hints:
            yield shown(next(leaves({name: value}))[0], MAX_SHOWN)
        elif inner := section_in(hints[key]):
            if get_origin(hints[key]) is dict and isinstance(value, Mapping):
                parts = [((*where, key, each), part) for each, part in value.items()]
            else:
                parts = [((*where, key), part) for part in (value if isinstance(value, list) else [value])]
            for place, part in parts:
                if not isinstance(part, Mapping):
                    raise ConfigError(f"{'.'.join(place)} is a section, got {_told(part)}")
                yield from _unknown(part, inner, place)


def _sentence(error: str, raw: Mapping[str, Any], root: type[Section], advice: str) -> str:
    """msgspec's ``Expected `int` >= 1 - at `$.run.steps``` as ``run.steps: expected a whole number >= 1, got 0``."""
    what, _, where = error.partition(" - at `$")
    key = where.strip("`").lstrip(".")
    if "missing required field" in what:
        missing = what.rpartition("`")[0].rpartition("`")[2]
        return _missing(".".join(filter(None, (key, missing))), root, advice)
    problem = what[0].lower() + what[1:]
    if "[...]" in key:  # A table with arbitrary keys: msgspec does not name the key.
        return f"{key}: {problem}"
    value = _at(raw, key)
    if what.startswith("Invalid enum value") and (kind := dict(fields(root)).get(re.sub(r"\[\d+\]", "", key))):
        return f"{key}: expected one of {', '.join(_alternatives(kind))}, got {_told(value)}"
    return f"{key}: {_in_words(problem.partition(', got')[0], value)}, got {_told(value)}"


def _told(value: Any) -> str:
    return shown(repr(value), MAX_SHOWN)


def _alternatives(kind: Any) -> list[str]:
    """Values of a `Literal`, and in words the types of a union with one."""
    if get_origin(kind) is Literal:
        return list(map(repr, get_args(kind)))
    if inner := get_args(kind):
        return [each for one in inner for each in _alternatives(one)]
    return [EXAMPLES.get(getattr(kind, "__name__", ""), str(kind))]


def _missing(key: str, root: type[Section], advice: str) -> str:
    kind = dict(fields(root)).get(re.sub(r"\[\d+\]", "", key))
    if not (isinstance(kind, type) and issubclass(kind, Section)):
        return f"missing key {key!r}: it has no default"
    needed = [repr(field.name) for field in msgspec.structs.fields(kind) if field.required]
    return f"missing section [{key}] with {' and '.join(needed)}{advice}"


def _in_words(expected: str, value: Any) -> str:
    """Name the wanted type, with its limit or an example: ``expected `array``` is ``expected a list such as ["a"]``."""
    if not (kinds := re.fullmatch(r"expected `([\w| ]+)`(.*)", expected)):
        return expected
    item = shown(value, MAX_SHOWN) if isinstance(value, str) else "a"
    examples = {**EXAMPLES, "array": f"a list such as {toml_value([item])}"}
    wanted = [examples.get(kind, kind) for kind in kinds.group(1).split(" | ") if kind != "null"]
    if limit := kinds.group(2).removesuffix(".0"):
        wanted = [f"{words.partition(' such as')[0]}{limit}" for words in wanted]
    return f"expected {' or '.join(wanted)}"


EXAMPLES = {
    "int": "a whole number such as 8",
    "float": "a number such as 1e-5",
    "bool": "true or false",
    "str": 'a text such as "a"',
    "object": "a table such as { a = 1 }",
}
"""Values of msgspec's types as one writes them in TOML."""


def _at(raw: Any, key: str) -> Any:
    """Value at a path such as ``many[0].colour``."""
    for part in re.findall(r"[^.\[\]]+", key):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    return raw
