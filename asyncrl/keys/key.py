"""
CURVE key pairs of nodes and brokers (Curve25519, rfc.zeromq.org/spec/26).

    node                        broker
    name, roles                 name "broker", no roles
    public, private             public, private
    broker: public key of the   broker: empty
    broker that it joins
"""

import re
from collections.abc import Sequence
from typing import Any

import zmq
from msgspec import Struct
from zmq.utils import z85

from asyncrl.errors import ConfigError

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
    public, private = zmq.curve_keypair()
    return Key(name, tuple(roles), z85.decode(public), z85.decode(private), broker)


def is_pair(key: Key) -> bool:
    """True if the private key belongs to the public one."""
    return z85.decode(zmq.curve_public(z85.encode(key.private))) == key.public


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
