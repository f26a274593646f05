"""
CURVE key pairs of nodes and brokers (Curve25519, rfc.zeromq.org/spec/26), and their files.

    node                        broker
    name, roles                 name "broker", no roles
    public, private             public, private
    broker: public key of the   broker: empty
    broker that it joins
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.files.access import read_private, write_private
from asyncrl.plug_in import hint
from asyncrl.wire.curve import new_pair, public_of

KEY_BYTES = 32
BROKER = "broker"
"""Name of the broker's own key."""
ROLES = ("rollout", "reward", "trainer", "spool", "supervisor")
"""Roles that a key may have. A supervisor is an operator, who may drain nodes."""
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
HEX = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")


class Key(Struct, frozen=True):
    """
    Key pair of a node or broker. Neither its repr nor an error shows the private key.

    Raises:
        ConfigError: The name or a role is invalid, or a key has a wrong length.
    """

    name: str
    roles: tuple[str, ...]
    """Roles that the key was made for. The broker's allow-list decides, and may have others."""
    public: bytes
    """[32]"""
    private: bytes
    """[32]"""
    broker: bytes = b""
    """[32] the broker's public key; empty in the broker's own key."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_roles(self.roles)
        check_length(self.public, "public")
        check_length(self.private, "private")
        if self.broker:
            check_length(self.broker, "broker")

    def __repr__(self) -> str:
        return f"<Key {self.name} {fingerprint(self.public)}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Fields that rich prints in place of the repr; those of a Struct would be all."""
        return [("name", self.name), ("fingerprint", fingerprint(self.public))]


def new_key(name: str, roles: Sequence[str], broker: bytes = b"") -> Key:
    """Make a key pair; raises `ConfigError` for an invalid name or role."""
    public, private = new_pair()
    return Key(name, tuple(roles), public, private, broker)


def fingerprint(public: bytes) -> str:
    """First 16 hexadecimal digits of a public key."""
    return public.hex()[:16]


def from_hex(text: str, what: str) -> bytes:
    """Key of 64 hexadecimal digits; raises `ConfigError`, which names ``what`` and not the digits."""
    if not HEX.fullmatch(text):
        found = "other" if len(text) == 2 * KEY_BYTES else str(len(text))
        raise ConfigError(f"{what}: expected {2 * KEY_BYTES} hexadecimal digits, got {found} characters")
    return bytes.fromhex(text)


def check_name(name: str) -> None:
    """Raise `ConfigError` unless a key may have this name."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a key: expected 1 to 64 letters, digits, dots, dashes or underscores")


def check_node_name(name: str) -> None:
    """Raise `ConfigError` unless a node's key may have this name."""
    check_name(name)
    if name == BROKER:
        raise ConfigError(f"{BROKER!r} is the name of the broker's own key; give the node another name")


def check_roles(roles: Sequence[str]) -> None:
    """Raise `ConfigError` for a role that does not exist or is given twice."""
    for role in roles:
        if role not in ROLES:
            raise ConfigError(f"unknown role {role!r}: expected one of {', '.join(ROLES)}")
    if len(set(roles)) < len(roles):
        raise ConfigError(f"a role is given twice: {', '.join(roles)}")


def check_length(key: bytes, what: str) -> None:
    """Raise `ConfigError` unless a key has 32 bytes."""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{what}: expected {KEY_BYTES} bytes, got {len(key)}")


# ── strict toml ───────────────────────────────────────────────────────────────────────────────
# Strict conversion of TOML to Structs whose bytes are written as hexadecimal digits.
#
# An error names a key of the file and what is wrong with its value, never the value: it may be a private key.

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


# ── key file ──────────────────────────────────────────────────────────────────────────────────
# Key files: one key pair as TOML, readable by its user alone.

HEADER = """\
# Key pair of an asyncrl node or broker, made by `asyncrl keys`.
# Whoever has the private key is taken for its owner: keep this file secret (mode 0600).
"""


def write_key(path: Path, key: Key) -> None:
    """Write a key file of mode 0600, atomically; raises OSError."""
    write_private(path, to_text(key))


def create_key(path: Path, key: Key) -> None:
    """Write a key file that does not exist yet; raises `ConfigError` if it does, or cannot be written."""
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten: give another path, or remove it")
    try:
        write_key(path, key)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; give a path that can be written") from error


def read_key(path: Path) -> Key:
    """
    Read a key file.

    Raises:
        ConfigError: There is no such file, other users may read it, it is not a key file, or its private key does not
            belong to its public one.
    """
    if not path.exists():
        raise ConfigError(f"no such key file: {path}; `asyncrl keys add` makes one on the broker's machine")
    text = read_private(path, "key file")
    try:
        return from_text(text)
    except ConfigError as error:
        raise ConfigError(f"{path} is not a key file: {error}") from None


def to_text(key: Key) -> str:
    return (
        f'{HEADER}name = "{key.name}"\nroles = {quoted(key.roles)}\n'
        f'public = "{key.public.hex()}"\nprivate = "{key.private.hex()}"\nbroker = "{key.broker.hex()}"\n'
    )


def from_text(text: str) -> Key:
    """Parse the text of a key file; raises `ConfigError`."""
    key = convert(parse(text), Key)
    if public_of(key.private) != key.public:
        raise ConfigError("its private key does not belong to its public key")
    return key
