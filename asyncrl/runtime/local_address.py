"""
The address of this machine on which a node's process groups listen.

    --interface, or else weights.interface       the address
    nothing                                      that of the route to the broker; loopback for a unix socket
    10.0.0.7                                     10.0.0.7, if this machine has it
    10.0.0.0/16, fd00::/64                       the first one of this machine in the network
    eth1                                         the first one of the network interface
"""

import os
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network

from asyncrl.errors import ConfigError
from asyncrl.weights.groups.network_interface import interface_addresses, listed
from asyncrl.wire.addresses import LOOPBACK, host_of, ip_of

INTERFACE_VARIABLE = "ASYNCRL_INTERFACE"
"""Environment variable that ``--interface`` sets, for this process and its children."""
OUTSIDE = {socket.AF_INET: "203.0.113.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses kept for documentation (RFC 5737, RFC 3849): no machine has them, so the default route leads there."""
ANY_PORT = 9


def local_address(broker: str, setting: str, environment: Mapping[str, str] = os.environ) -> str:
    """
    Address of this machine for process groups with other nodes. Looks up the broker's name, which blocks.

    Args:
        broker: Address at which this node reached the broker.
        setting: ``weights.interface``; the environment's `INTERFACE_VARIABLE` goes before it.

    Raises:
        ConfigError: This machine has no such address, or no route to the broker; names the addresses that it has.
    """
    if given := environment.get(INTERFACE_VARIABLE):
        return choose(given, f"--interface ({INTERFACE_VARIABLE})", interface_addresses())
    if setting:
        return choose(setting, "weights.interface", interface_addresses())
    host = host_of(broker)
    return route_to(host) if host else LOOPBACK


def choose(wanted: str, name: str, found: Sequence[tuple[str, str]]) -> str:
    """
    The first of the addresses ``found``, each with its interface, that is wanted.

    Args:
        wanted: An address, a network in CIDR notation, or the name of an interface.
        name: Option or setting that wants it, for messages.
    """
    for interface, address in found:
        if _is_wanted(wanted, interface, address):
            return address
    raise ConfigError(
        f"{name} is {wanted!r}, which no network interface of this machine has; it has {listed(found)}: name one of "
        f"these, or a network that includes one"
    )


def route_to(host: str) -> str:
    """
    The address from which this machine sends to ``host``. No packet is sent.

    A name means its IPv4 address if it has one, as it does for links.

    Raises:
        ConfigError: The name is unknown, or there is no route; names the addresses of this machine.
    """
    try:
        ways = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)
        family, kind, _, _, target = min(ways, key=lambda way: way[0] != socket.AF_INET)
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"this machine finds no route to the broker's host {host} ({error.strerror}); it has "
            f"{listed(interface_addresses())}: name one of these with --interface, or the network in weights.interface"
        ) from error


def outward_address() -> str:
    """The address of this machine's default route, IPv4 if it has one; without, the first that others may reach."""
    for family, outside in OUTSIDE.items():
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((outside, ANY_PORT))
                return str(probe.getsockname()[0])
        except OSError:  # no route
            continue
    found = (ip_address(address) for _, address in interface_addresses())
    return next((str(ip) for ip in found if not (ip.is_loopback or ip.is_link_local)), LOOPBACK)


def _is_wanted(wanted: str, interface: str, address: str) -> bool:
    ip = ip_address(address)
    if "/" in wanted:
        return ip in ip_network(wanted, strict=False)
    return ip == ip_of(wanted) or (interface == wanted and not ip.is_link_local)
