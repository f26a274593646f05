"""
Keys of a broker: derived from the secret of its run, or its own with an allow-list of nodes.

    without --keys   every node that knows RUN/secret may act in every role
    --keys DIR       DIR/broker.key, and DIR/allowed.toml with the public key, name and roles of each node; local nodes
                     find a key for every role in RUN/key
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.actor.link import Hub
from asyncrl.actor.sockets.curve import HubKeys, LinkKeys, Owner, hub_keys_of, link_keys_of, local_pair
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.config.checks.addresses import exposed_addresses
from asyncrl.config.sections.broker import Broker
from asyncrl.errors import ConfigError
from asyncrl.files.disk import needed
from asyncrl.keys.allowed_keys import AllowedKeys
from asyncrl.keys.key import ROLES, Key
from asyncrl.keys.key_file import write_key
from asyncrl.keys.key_folder import KeyFolder
from asyncrl.messages.spool import Accepted, AcceptedKey
from asyncrl.node.broker.run_folder import RunFolder

LOCAL = Owner("", frozenset(ROLES))
REFRESH_S = 1.0
"""Interval of looks at the allow-list: the longest time that a revoked key goes on."""


class BrokerKeys(Struct, frozen=True, eq=False):
    """Keys of a broker, and the keys that it accepts."""

    hub: HubKeys
    credentials_file: Path
    """Credentials of nodes of the same user on this machine."""
    allowed: AllowedKeys | None = None
    """The allow-list; None if the run's secret decides."""
    link: LinkKeys | None = None
    """Keys of the broker's own links to spools on other machines."""
    always: tuple[AcceptedKey, ...] = ()
    """Keys beside those of the allow-list: of nodes on this machine, and the broker's own."""


def require_keys(broker: Broker, folder: Path | None) -> None:
    """
    Check the key folder of a broker, or that it needs none, before there is a run.

    Raises:
        ConfigError: The folder lacks the broker's key, or other users can enter it. Without a folder: the broker is to
            listen where other machines reach it.
    """
    if folder is None:
        _require_loopback(broker)
    else:
        KeyFolder(folder).broker()


def broker_keys(run: RunFolder, folder: Path | None) -> BrokerKeys:
    """
    Keys of the broker of ``run``, from the key folder ``folder`` or, without one, the run's secret.

    Raises:
        ConfigError: As `require_keys`, or the allow-list cannot be read.
    """
    require_keys(run.config.broker, folder)
    local_key = run.directory.path / "key"
    if folder is None:
        local_key.unlink(missing_ok=True)
        return BrokerKeys(hub_keys_of(run.secret), run.secret_file, link=link_keys_of(run.secret))
    files = KeyFolder(folder)
    own, allowed = files.broker(), AllowedKeys(folder)
    public, private = local_pair(run.secret)
    with needed(local_key):
        write_key(local_key, Key("local", ROLES, public, private, own.public))

    def owner_of(asked: bytes) -> Owner | None:
        if asked == public:
            return LOCAL
        entry = allowed.owner_of(asked)
        return Owner(entry.name, frozenset(entry.roles)) if entry else None

    link = LinkKeys(own.public, own.private, own.public)
    always = AcceptedKey(public, "", list(ROLES)), AcceptedKey(own.public, "", ["supervisor"])
    return BrokerKeys(HubKeys(own.public, own.private, owner_of), local_key, allowed, link, always)


async def cut_revoked(
    allowed: AllowedKeys,
    hubs: Sequence[ZmqHub],
    lost: Callable[[list[str], str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """
    Follow changes of the allow-list until cancelled, and cut the connections of keys that are not in it any more.

    Args:
        lost: Called with the peers that were cut, and the cause.
    """
    while True:
        await sleep(REFRESH_S)
        if revoked := allowed.refresh():
            for hub in hubs:
                lost(hub.cut(revoked), "its key was revoked")


async def tell_spools(
    keys: BrokerKeys, nodes: NodeBook, hub: Hub, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Tell every spool which keys may connect, when it joins and whenever they change, until cancelled."""
    told: dict[str, Accepted | None] = {}
    while keys.allowed:
        accepted = Accepted([*keys.always, *_entries(keys.allowed)])
        told = {node.peer: told.get(node.peer) for node in nodes.of("spool")}
        for peer in [peer for peer, known in told.items() if known != accepted]:
            hub.send(peer, accepted)
            told[peer] = accepted
        await sleep(REFRESH_S)


def _entries(allowed: AllowedKeys) -> list[AcceptedKey]:
    return [AcceptedKey(public, key.name, sorted(key.roles)) for public, key in allowed.accepted().items()]


def _require_loopback(broker: Broker) -> None:
    """Raise `ConfigError` if other machines reach one of the broker's sockets."""
    if exposed := exposed_addresses(broker):
        raise ConfigError(
            f"{exposed[0]} is not a loopback address: its connections need keys; give --keys DIR, which "
            f"`asyncrl keys init --keys DIR` makes"
        )
