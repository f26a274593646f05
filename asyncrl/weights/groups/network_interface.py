"""
Environment variables that configure NCCL and HCCL, which have no other interface for this.

Network interface: both libraries select one by name. ``weights.interface`` is an address, so its interface is looked up
(ioctl SIOCGIFADDR, /proc/net/if_inet6) and set, for an exact match, in NCCL_SOCKET_IFNAME or HCCL_SOCKET_IFNAME.
Watchdog: both end the process when a collective is late, unless their waits are set to block; here the deadlines of
`asyncrl.weights.groups` handle late collectives.

Invariants: the variables are set only while a group is formed; a variable that the user set is not changed. NCCL reads
its interface once per process: an earlier group of other code has already chosen it.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path

from asyncrl.errors import ConfigError

INTERFACE = {"nccl": "NCCL_SOCKET_IFNAME", "hccl": "HCCL_SOCKET_IFNAME"}
BLOCKING = {"nccl": "TORCH_NCCL_BLOCKING_WAIT", "hccl": "TORCH_HCCL_BLOCKING_WAIT"}

SIOCGIFADDR = 0x8915
"""linux/sockios.h: the IPv4 address of an interface."""

IPV6_INTERFACES = Path("/proc/net/if_inet6")


@contextmanager
def collective_environment(backend: str, address: str) -> Iterator[None]:
    """Set the variables of ``nccl`` or ``hccl`` during the block; raises as `interface_name` does."""
    values = settings(backend, address, os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


def settings(backend: str, address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """
    Variables to set in addition to ``environment``.

    Example:
        settings("nccl", "127.0.0.1", {}) == {"TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_SOCKET_IFNAME": "=lo"}
    """
    values = {BLOCKING[backend]: "1"} if BLOCKING[backend] not in environment else {}
    if INTERFACE[backend] not in environment:
        values[INTERFACE[backend]] = f"={interface_name(address)}"  # both take "=" for "exactly this one"
    return values


def interface_name(address: str) -> str:
    """Name of the network interface that has an address; raises `ConfigError` with all addresses if none has."""
    found = _ipv6_addresses() if ":" in address else _ipv4_addresses()
    for name, candidate in found:
        if candidate == address:
            return name
    raise ConfigError(
        f"weights.interface is {address!r}, which no network interface of this machine has; expected one of "
        f"{', '.join(f'{candidate} ({name})' for name, candidate in found)}"
    )


def _ipv4_addresses() -> list[tuple[str, str]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def _ipv6_addresses() -> list[tuple[str, str]]:
    lines = IPV6_INTERFACES.read_text(encoding="ascii").splitlines() if IPV6_INTERFACES.exists() else []
    return [(line.split()[-1], str(IPv6Address(bytes.fromhex(line.split()[0])))) for line in lines]
