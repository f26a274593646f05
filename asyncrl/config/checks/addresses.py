"""Checks of addresses in a run file or on a command line: where the broker listens, and which interface nodes use."""

import re
from collections.abc import Sequence
from ipaddress import ip_network

from asyncrl.config.addresses import bracketed, check_address, ip_of, is_loopback, is_wildcard, port_of
from asyncrl.config.sections.broker import Broker
from asyncrl.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9._-]+")
INTERFACE = re.compile(r"[^\s/:]{1,15}")
"""Name of a network interface, as Linux takes it."""


def check_broker_addresses(broker: Broker) -> None:
    """Raise `ConfigError` if nodes could not reach the broker's sockets as ``broker`` has them."""
    if not broker.binds:
        raise ConfigError("broker.bind is empty: give an address to listen on, such as tcp://127.0.0.1:0")
    check_binds(broker.binds, "broker.bind")
    check_binds(broker.spool_binds, "broker.spool_bind")
    if broker.spool_bind and not broker.spool:
        raise ConfigError("broker.spool_bind is only read with broker.spool=true; remove it")
    if broker.advertise:
        check_host(broker.advertise, "broker.advertise")
        if not broker.binds[0].startswith("tcp://"):
            raise ConfigError(f"broker.advertise is only read if broker.bind is a tcp address, not {broker.bind!r}")
    if not broker.serves_other_machines:
        return
    if len({port_of(address) for address in broker.spool_binds if address.startswith("tcp://")}) > 1:
        raise ConfigError(f"broker.spool_bind is {broker.spool_bind!r}: expected one port for all of its addresses")
    if broker.spool_bind and not any(_is_reachable(address, broker.advertise) for address in broker.spool_binds):
        raise ConfigError(
            f"broker.spool_bind is {broker.spool_bind!r}, which no other machine reaches, but broker.bind is "
            f"{broker.bind!r}: give an address like it, or leave spool_bind empty for a free port"
        )


def exposed_addresses(broker: Broker) -> list[str]:
    """Addresses of the broker and its spool that other machines may reach."""
    return [address for address in (*broker.binds, *broker.spool_binds) if not is_loopback(address)]


def check_one_machine(broker: Broker) -> None:
    """Raise `ConfigError` if other machines could reach the broker of `asyncrl run`, which has no keys."""
    if exposed := exposed_addresses(broker):
        raise ConfigError(
            f"the broker of this run listens on {exposed[0]}, which needs keys: start and continue a run of several "
            f"machines with its services, or with asyncrl-node --role broker --keys DIR"
        )


def check_binds(addresses: Sequence[str], setting: str) -> None:
    """Raise `ConfigError` unless one socket can listen on all ``addresses``."""
    for address in addresses:
        check_address(address, setting, binds=True)
    if len(addresses) < 2:
        return
    for address in addresses:
        if not address.startswith("tcp://") or is_wildcard(address):
            why = "a wildcard includes all others" if is_wildcard(address) else "it is a unix socket"
            raise ConfigError(f"{setting} lists {address!r} among others, but {why}: give it alone")


def check_gateway_address(address: str) -> None:
    """Raise `ConfigError` unless agent programs can be told to connect to ``address``."""
    check_address(address, "environment.gateway", binds=True)
    if not address.startswith("tcp://") or is_wildcard(address):
        raise ConfigError(
            f"environment.gateway is {address!r}: expected tcp://HOST:PORT with the one host by which programs connect"
        )


def check_host(host: str, setting: str) -> None:
    """Raise `ConfigError` unless ``host`` is the name, IPv4 address or IPv6 address of one machine."""
    if (ip_of(host) is None and not NAME.fullmatch(host)) or is_wildcard(f"tcp://{bracketed(host)}:0"):
        raise ConfigError(f"{setting} is {host!r}: expected a name or an address of one machine, without a port")


def check_interface(interface: str, setting: str) -> None:
    """Raise `ConfigError` unless ``interface`` is an address, a network in CIDR notation, or a name; see `Weights`."""
    try:
        if "/" in interface:
            ip_network(interface, strict=False)
        elif ip_of(interface) is None and not INTERFACE.fullmatch(interface):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{setting} is {interface!r}: expected a network interface such as eth0, an address of it, or a network "
            f"such as 10.1.0.0/16"
        ) from None


def _is_reachable(address: str, advertise: str) -> bool:
    """True if other machines may reach a socket there, by itself or through the advertised host."""
    return not is_loopback(address) or (bool(advertise) and address.startswith("tcp://"))
