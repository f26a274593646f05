"""
Allow-list of a broker: which key may connect, under which name, in which roles.

    add ─▶ allowed ─revoke─▶ refused
              │
              └─rotate─▶ the next key is allowed; the previous one until its overlap ends, by default at once

Invariants: a name and a public key belong to one entry; a node name belongs to at most one key (`owns`).
Pure rules: the time is an argument, and every change returns another list.
"""

import difflib
import math
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from asyncrl.errors import ConfigError
from asyncrl.files.access import write_private
from asyncrl.wire.keys.key import check_length, check_node_name, check_roles, convert, fingerprint, parse, quoted

LAST_S = 253402300799
"""End of the year 9999, seconds since the epoch: the last time that a date can say."""


def owns(key_name: str, node_name: str) -> bool:
    """True if a node of this name may use the key: one key serves rollout-a, rollout-a-0 and rollout-a-1."""
    return node_name == key_name or node_name.startswith(f"{key_name}-")


def utc_date(now_s: float) -> date:
    """Date at ``now_s`` seconds since the epoch, UTC."""
    return datetime.fromtimestamp(now_s, UTC).date()


def utc_time(now_s: float) -> str:
    """Time at ``now_s`` seconds since the epoch, UTC, for people."""
    return f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


class AllowedKey(Struct, frozen=True):
    """
    One entry of the allow-list.

    Raises:
        ConfigError: The name or a role is invalid, there is no role, or a key has a wrong length.
    """

    name: str
    roles: tuple[str, ...]
    public: bytes
    """[32]"""
    added: date
    """UTC date when ``public`` was added."""
    previous: bytes = b""
    """[32] the key before a rotation with overlap; empty without one."""
    previous_until: int = 0
    """Seconds since the epoch, on the broker's clock, from which ``previous`` is refused."""

    def __post_init__(self) -> None:
        check_node_name(self.name)
        if not self.roles:
            raise ConfigError(f"{self.name} has no role; give it at least one")
        check_roles(self.roles)
        check_length(self.public, "public")
        if self.previous:
            check_length(self.previous, "previous")
        if not 0 <= self.previous_until <= LAST_S:
            raise ConfigError(f"previous_until: expected 0 to {LAST_S} seconds, got {self.previous_until}")

    def accepts(self, public: bytes, now_s: float) -> bool:
        """True for the key itself and, during an overlap, for the one before."""
        return public == self.public or (public == self.previous and now_s < self.previous_until)


class AllowList:
    """
    Keys that may connect, in the order in which they were added.

    Raises:
        ConfigError: A name or a key occurs twice, or two names can own the same node.
    """

    def __init__(self, keys: Iterable[AllowedKey] = ()) -> None:
        self._by_name: dict[str, AllowedKey] = {}
        self._by_public: dict[bytes, AllowedKey] = {}
        for key in keys:
            self._insert(key)
        self._check_prefixes()

    def __iter__(self) -> Iterator[AllowedKey]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"<AllowList {' '.join(self._by_name)}>"

    def owner_of(self, public: bytes, now_s: float) -> AllowedKey | None:
        """Entry that accepts a public key at ``now_s`` seconds since the epoch; None if there is none."""
        key = self._by_public.get(public)
        return key if key and key.accepts(public, now_s) else None

    def accepted(self, now_s: float) -> dict[bytes, AllowedKey]:
        """Public keys that are accepted at ``now_s``, each with its entry."""
        return {public: key for public, key in self._by_public.items() if key.accepts(public, now_s)}

    def named(self, name: str) -> AllowedKey:
        """Entry of this name; raises `ConfigError` if there is none."""
        if name in self._by_name:
            return self._by_name[name]
        close = difflib.get_close_matches(name, self._by_name, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(self._by_name) or 'none'}"
        raise ConfigError(f"there is no key named {name!r}: {hint}")

    def add(self, key: AllowedKey) -> "AllowList":
        """List with one more key; raises `ConfigError` if its name or its public key is in the list."""
        return AllowList([*self, key])

    def revoke(self, name: str) -> "AllowList":
        """List without a key, and without the previous one of a rotation; raises `ConfigError` if there is none."""
        revoked = self.named(name)
        return AllowList(key for key in self if key is not revoked)

    def rotate(self, name: str, public: bytes, now_s: float, overlap_s: float = 0.0) -> "AllowList":
        """
        List with another public key for a name.

        Args:
            now_s: Seconds since the epoch.
            overlap_s: Seconds for which the present key is accepted too. A key before it is refused at once.

        Raises:
            ConfigError: There is no such name, or the public key is in the list.
        """
        old = self.named(name)
        self._refuse_known(public)
        new = structs.replace(
            old,
            public=public,
            added=utc_date(now_s),
            previous=old.public if overlap_s else b"",
            previous_until=math.ceil(now_s + overlap_s) if overlap_s else 0,
        )
        return AllowList(new if key is old else key for key in self)

    def _insert(self, key: AllowedKey) -> None:
        if key.name in self._by_name:
            raise ConfigError(f"there is a key named {key.name!r} already: rotate it, or revoke it first")
        for public in filter(None, (key.public, key.previous)):
            self._refuse_known(public)
            self._by_public[public] = key
        self._by_name[key.name] = key

    def _refuse_known(self, public: bytes) -> None:
        if owner := self._by_public.get(public):
            raise ConfigError(f"the key {fingerprint(public)} belongs to {owner.name!r} already: make another pair")

    def _check_prefixes(self) -> None:
        """Refuse two keys that can own one node, so that no key can take the name of another one's node."""
        for name in self._by_name:
            for end in (index for index, letter in enumerate(name) if letter == "-"):
                if name[:end] in self._by_name:
                    raise ConfigError(
                        f"a node {name!r} could use the key {name[:end]!r} as well as the key {name!r}: choose names "
                        f"of which none begins with another one and a dash"
                    )


# ── allow list file ───────────────────────────────────────────────────────────────────────────
# Text form of the allow-list, `allowed.toml`, which people may read and edit.
#
#     version = 1                     required: a file that was emptied is invalid, and no list
#     [[key]]                         one table for each key
#     name, roles, public, added
#     previous, previous_until        during a rotation with overlap

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
