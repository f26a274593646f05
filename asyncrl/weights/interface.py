"""
What NCCL and HCCL are told through the environment, which is the only way they listen to.

Both choose a network interface themselves, by name. ``weights.interface`` is an address, so the interface that has it
is looked up (ioctl SIOCGIFADDR, /proc/net/if_inet6) and named, exactly, in NCCL_SOCKET_IFNAME or HCCL_SOCKET_IFNAME.
And both have a watchdog that ends the process when a collective is late, unless their waits are said to block: what is
late is the business of our deadlines here.

Invariants: only the process that forms a group is told, while it does; what a person has set stays as it is. NCCL reads
its interface once: a group of somebody else's that came first in the process has chosen it already.
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
def told(backend: str, address: str) -> Iterator[None]:
    """
    Tell a library how to behave, while the body runs.

    Args:
        backend: ``nccl`` or ``hccl``.
        address: Of the network interface that it is to use.

    Raises:
        ConfigError: No interface has the address.
    """
    values = settings(backend, address, os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


def settings(backend: str, address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """
    What is missing in an environment.

    Example:
        settings("nccl", "127.0.0.1", {}) == {"TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_SOCKET_IFNAME": "=lo"}
    """
    values = {BLOCKING[backend]: "1"} if BLOCKING[backend] not in environment else {}
    if INTERFACE[backend] not in environment:
        values[INTERFACE[backend]] = f"={interface_name(address)}"  # both take "=" for "exactly this one"
    return values


def interface_name(address: str) -> str:
    """
    The network interface that has an address.

    Raises:
        ConfigError: None of this machine's has it; lists those there are.
    """
    found = _ipv6_addresses() if ":" in address else _ipv4_addresses()
    for name, its_address in found:
        if its_address == address:
            return name
    raise ConfigError(
        f"weights.interface is {address!r}, which no network interface here has; expected one of "
        f"{', '.join(f'{its_address} ({name})' for name, its_address in found)}"
    )


def _ipv4_addresses() -> list[tuple[str, str]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def _ipv6_addresses() -> list[tuple[str, str]]:
    lines = IPV6_INTERFACES.read_text(encoding="ascii").splitlines() if IPV6_INTERFACES.exists() else []
    return [(line.split()[-1], str(IPv6Address(bytes.fromhex(line.split()[0])))) for line in lines]
