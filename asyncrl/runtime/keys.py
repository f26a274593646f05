"""
Keys of a broker and of spools: derived from the secret of the run, or their own with an allow-list of nodes.

    without --keys   every node that knows RUN/secret may act in every role
    --keys DIR       DIR/broker.key, and DIR/allowed.toml with the public key, name and roles of each node; local nodes
                     find a key for every role in RUN/key
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.broker.nodes.node import NodeBook
from asyncrl.config.sections.broker import Broker
from asyncrl.errors import ConfigError
from asyncrl.files.access import is_secret, read_secret
from asyncrl.files.atomic import needed
from asyncrl.messages.spool import Accepted, AcceptedKey
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.held_run import HeldRun
from asyncrl.wire.curve import HubKeys, LinkKeys, Owner, hub_keys_of, link_keys_of, local_pair
from asyncrl.wire.keys.key import ROLES, Key, write_key
from asyncrl.wire.keys.key_folder import AllowedKeys, KeyFolder
from asyncrl.wire.link import Hub
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub

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
    if folder is not None:
        KeyFolder(folder).broker()
    elif exposed := broker.exposed_addresses:
        raise ConfigError(
            f"{exposed[0]} is not a loopback address: its connections need keys; give --keys DIR, which "
            f"`asyncrl keys init --keys DIR` makes"
        )


def broker_keys(run: HeldRun, folder: Path | None) -> BrokerKeys:
    """
    Keys of the broker of ``run``, from the key folder ``folder`` or, without one, the run's secret.

    Raises:
        ConfigError: As `require_keys`, or the allow-list cannot be read.
    """
    require_keys(run.config.broker, folder)
    local_key = run.directory.local_key
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
        listed = keys.allowed.accepted().items()
        entries = [AcceptedKey(public, key.name, sorted(key.roles)) for public, key in listed]
        accepted = Accepted([*keys.always, *entries])
        told = {node.peer: told.get(node.peer) for node in nodes.with_role("spool")}
        for peer in [peer for peer, known in told.items() if known != accepted]:
            hub.send(peer, accepted)
            told[peer] = accepted
        await sleep(REFRESH_S)


# ── spool keys ────────────────────────────────────────────────────────────────────────────────
# Keys of a spool on its own machine.
#
#     secret of the run   the keys that all hubs of the run derive from it
#     key of the node     its own pair; the broker tells it which other keys may connect, see `broker_keys`


class SpoolKeys:
    """
    Keys with which a spool of ``run`` listens.

    Raises:
        ConfigError: The credentials cannot be read.
    """

    def __init__(self, run: RunAddress) -> None:
        self._owners: dict[bytes, Owner] = {}
        self.hub: HubKeys | None = None
        """None for a unix socket."""
        self.public = b""
        """Key that nodes must find at this spool; empty if the secret of the run gives it."""
        if run.credentials_file and is_secret(run.credentials_file):
            self.hub = hub_keys_of(read_secret(run.credentials_file))
        elif own := run.keys():
            self.hub = HubKeys(own.public, own.private, self._owners.get)
            self.public = own.public

    def listen(self, address: str) -> ZmqHub:
        """Bind a hub. Whoever connects with a key waits for the first `accept`: nodes are faster than the broker."""
        hub = ZmqHub(address, CODEC, keys=self.hub)
        hub.hold_handshakes()
        return hub

    def accept(self, keys: list[AcceptedKey], hub: ZmqHub) -> None:
        """Let these keys connect to ``hub``, and cut the connections of all others."""
        before = dict(self._owners)
        self._owners.clear()
        self._owners.update({key.public: Owner(key.name, frozenset(key.roles)) for key in keys})
        hub.answer_handshakes()
        if revoked := [public for public, owner in before.items() if self._owners.get(public) != owner]:
            hub.cut(revoked)
