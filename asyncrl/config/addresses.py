"""Checks of addresses in a run file or on a command line: where sockets listen, and which interface nodes use."""

import re
from collections.abc import Sequence
from ipaddress import ip_network

from asyncrl.errors import ConfigError
from asyncrl.wire.addresses import bracketed, check_address, ip_of, is_loopback, is_wildcard

NAME = re.compile(r"[A-Za-z0-9._-]+")
INTERFACE = re.compile(r"[^\s/:]{1,15}")
"""Name of a network interface, as Linux takes it."""


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


def is_reachable(address: str, advertise: str) -> bool:
    """True if other machines may reach a socket there, by itself or through the advertised host."""
    return not is_loopback(address) or (bool(advertise) and address.startswith("tcp://"))
