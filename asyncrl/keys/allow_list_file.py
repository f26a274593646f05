"""
Text form of the allow-list, `allowed.toml`, which people may read and edit.

    version = 1                     required: a file that was emptied is invalid, and no list
    [[key]]                         one table for each key
    name, roles, public, added
    previous, previous_until        during a rotation with overlap
"""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.files.private_file import write_private
from asyncrl.keys.allow_list import AllowedKey, AllowList, utc_time
from asyncrl.keys.strict_toml import convert, parse, quoted

VERSION = 1
HEADER = f"""\
# Keys that may connect to the broker, written by `asyncrl keys`. A running broker reads this file again within seconds.
version = {VERSION}
"""


class _File(Struct, frozen=True):
    version: int
    key: list[dict[str, Any]] = []


def write_allow_list(path: Path, allowed: AllowList) -> None:
    """Write the file, of mode 0600, atomically; raises OSError."""
    write_private(path, to_text(allowed))


def read_allow_list(path: Path) -> AllowList:
    """
    Read the file.

    Raises:
        ConfigError: The file cannot be read, other users may write it, or it is no allow-list.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the allow-list {path}: {getattr(error, 'strerror', None) or error}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"other users can write {path} (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    try:
        return from_text(text)
    except ConfigError as error:
        raise ConfigError(f"{path} is not an allow-list: {error}") from None


def to_text(allowed: AllowList) -> str:
    return "\n".join([HEADER, *("\n".join(_lines(key)) + "\n" for key in allowed)])


def from_text(text: str) -> AllowList:
    """Parse the text of the file; raises `ConfigError`."""
    file = convert(parse(text), _File)
    if file.version != VERSION:
        raise ConfigError(f"version: expected {VERSION}, got {file.version}")
    return AllowList(_entry(table, number) for number, table in enumerate(file.key, 1))


def _entry(table: dict[str, Any], number: int) -> AllowedKey:
    try:
        return convert(table, AllowedKey)
    except ConfigError as error:
        raise ConfigError(f"key {number} ({table.get('name', 'without a name')}): {error}") from None


def _lines(key: AllowedKey) -> Iterator[str]:
    yield "[[key]]"
    yield f'name = "{key.name}"'
    yield f"roles = {quoted(key.roles)}"
    yield f'public = "{key.public.hex()}"'
    yield f"added = {key.added.isoformat()}"
    if key.previous:
        yield f'previous = "{key.previous.hex()}"'
        yield f"previous_until = {key.previous_until}  # {utc_time(key.previous_until)}"
