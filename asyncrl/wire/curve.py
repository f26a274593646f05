"""
CURVE keys of both ends of a TCP connection (rfc.zeromq.org/spec/26). Connections are authenticated and encrypted.

    run secret   both ends derive the hub's key pair from it; whoever knows the secret may connect
    key pairs    each end has its own; the hub looks the peer's public key up, and refuses a key without an owner

Neither end reads a message of the other before it has proved that it has the private key. A unix socket has no keys:
the permissions of its folder decide who connects.
"""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import zmq
from msgspec import Struct
from zmq.utils import z85

from asyncrl.errors import ConfigError
from asyncrl.files.access import SECRET_BYTES

Keys = TypeVar("Keys")

HANDSHAKE_MS = 5000
"""Time limit of a handshake, after which ZeroMQ closes the connection."""
ZAP_DOMAIN = b"asyncrl"
_HUB, _LOCAL = b"asyncrl hub", b"asyncrl local"
"""Purposes of the keys that are derived from a secret."""


class Owner(Struct, frozen=True):
    """Holder of a key."""

    name: str
    """Names of its nodes are this one, or begin with it and ``-``; empty allows any name."""
    roles: frozenset[str]
    """Roles in which its nodes may act."""


class LinkKeys(Struct, frozen=True):
    """Keys of a connecting end: 32 bytes each."""

    public: bytes
    private: bytes
    hub: bytes
    """Public key that the hub must have."""

    def __repr__(self) -> str:
        return f"<LinkKeys {self.public.hex()[:16]}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("public", self.public.hex()[:16])]


class RefusedKey(Struct, frozen=True):
    """A handshake with a key that has no owner."""

    key: str
    """First 16 hexadecimal digits of the key."""
    address: str
    num_refused: int
    """Refused handshakes so far."""


class HubKeys(Struct, frozen=True, eq=False):
    """Keys of a listening end: 32 bytes each."""

    public: bytes
    private: bytes
    owner_of: Callable[[bytes], Owner | None] | None = None
    """Owner of a peer's public key, None to refuse it. Unset: the public key of the hub is secret, and enough."""

    def __repr__(self) -> str:
        return f"<HubKeys {self.public.hex()[:16]}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("public", self.public.hex()[:16])]


def hub_keys_of(secret: bytes) -> HubKeys:
    """Keys of the hub of a run with this secret; raises `ConfigError` if it is none."""
    return HubKeys(*_derived(secret, _HUB))


def link_keys_of(secret: bytes) -> LinkKeys:
    """Keys of a link to a hub with `hub_keys_of` the same secret."""
    return LinkKeys(*new_pair(), _derived(secret, _HUB)[0])


def local_pair(secret: bytes) -> tuple[bytes, bytes]:
    """Key pair, public first, with which nodes that know the run's secret connect to a hub with keys of its own."""
    return _derived(secret, _LOCAL)


def new_pair() -> tuple[bytes, bytes]:
    """A random key pair, the public key first."""
    public, private = zmq.curve_keypair()
    return z85.decode(public), z85.decode(private)


def public_of(private: bytes) -> bytes:
    """The public key that belongs to a private one."""
    return z85.decode(zmq.curve_public(z85.encode(private)))


def secure_hub(socket: "zmq.Socket[bytes]", address: str, keys: HubKeys | None) -> None:
    """
    Accept only connections of links with the right keys, if ``address`` is a TCP address. Call before bind.

    Raises:
        ConfigError: A TCP address without keys.
    """
    if needs_keys(address):
        keys = _required(keys, address)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.private))
        if keys.owner_of:
            socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, a missing handler would let everybody in


def secure_link(socket: "zmq.Socket[bytes]", address: str, keys: LinkKeys | None) -> None:
    """Connect only to the hub with public key ``keys.hub``, if ``address`` is a TCP address. Call before connect."""
    if needs_keys(address):
        keys = _required(keys, address)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(keys.hub))
        socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(keys.public))
        socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.private))


def needs_keys(address: str) -> bool:
    return address.startswith("tcp://")


def _derived(secret: bytes, purpose: bytes) -> tuple[bytes, bytes]:
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"the secret of a run has {SECRET_BYTES} bytes, got {len(secret)}: give --secret FILE")
    private = hashlib.blake2b(secret, digest_size=32, person=purpose).digest()
    return public_of(private), private


def _required(keys: Keys | None, address: str) -> Keys:
    if keys is None:
        raise ConfigError(f"{address} needs the secret of the run, or a key: give --secret FILE or --key FILE")
    return keys
