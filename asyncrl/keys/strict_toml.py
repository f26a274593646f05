"""
Strict conversion of TOML to Structs whose bytes are written as hexadecimal digits.

An error names a key of the file and what is wrong with its value, never the value: it may be a private key.
"""

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.keys.key import from_hex
from asyncrl.plug_in import hint

S = TypeVar("S", bound=Struct)


def parse(text: str) -> dict[str, Any]:
    """Parse TOML; raises `ConfigError`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: arrays in arrays in arrays.
        raise ConfigError(f"not TOML: {error}") from None


def convert(table: Mapping[str, Any], kind: type[S]) -> S:
    """
    Convert a table; a field of type bytes is 64 hexadecimal digits, or an empty string.

    Raises:
        ConfigError: A key is unknown or missing, or its value has a wrong type or length.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name in table:
        if name not in fields:
            raise ConfigError(f"unknown key {name!r}: {hint(name, fields)}")
    found = {name: _decoded(value, name) if fields[name] is bytes else value for name, value in table.items()}
    try:
        return msgspec.convert(found, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ConfigError(_sentence(str(error))) from None


def quoted(values: Iterable[str]) -> str:
    """TOML array of strings without quotes, backslashes and control characters."""
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def _decoded(value: Any, name: str) -> Any:
    return from_hex(value, name) if isinstance(value, str) and value else b"" if value == "" else value


def _sentence(error: str) -> str:
    """msgspec's ``Expected `str`, got `int` - at `$.name``` as ``name: expected `str`, got `int```."""
    what, _, where = error.partition(" - at `$")
    if "missing required field" in what:
        return f"missing key {what.rpartition('`')[0].rpartition('`')[2]!r}"
    return f"{where.strip('.`')}: {what[0].lower()}{what[1:]}"
