"""
Environment variables that configure NCCL and HCCL, which have no other interface for this, and the deadline of a
transfer.

Network interface: both libraries select one by name. A node knows the address at which it listens, so its interface is
looked up (ioctl SIOCGIFCONF, /proc/net/if_inet6) and set, for an exact match, in NCCL_SOCKET_IFNAME or
HCCL_SOCKET_IFNAME.
Watchdog: both end the process when a collective is late, unless their waits are set to block, and again from a second
thread that monitors the first; here the deadlines of `asyncrl.weights.groups` handle late collectives.
Connecting: HCCL gives up after a time of its own, which must not be shorter than the deadline.

Invariants: the variables are set only while groups are formed, and stay until the last of them, since groups of one
process are formed in several threads; a variable that the user set is not changed. NCCL reads its interface once per
process: an earlier group of other code has already chosen it.
"""

import fcntl
import math
import os
import socket
import struct
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from asyncrl.errors import ConfigError

INTERFACE = {"nccl": "NCCL_SOCKET_IFNAME", "hccl": "HCCL_SOCKET_IFNAME"}
LATE_IS_NO_END = {
    backend: {f"{prefix}_BLOCKING_WAIT": "1", f"{prefix}_DUMP_ON_TIMEOUT": "0", f"{prefix}_ENABLE_MONITORING": "0"}
    for backend, prefix in (("nccl", "TORCH_NCCL"), ("hccl", "TORCH_HCCL"))
}
"""Variables with which a late collective does not end the process."""

HCCL_CONNECT_TIMEOUT = "HCCL_CONNECT_TIMEOUT"
HCCL_CONNECT_S = 120, 7200
"""Least, which is the default, and most seconds for HCCL to connect. Source: CANN 8.5, HCCL user guide."""

SIOCGIFCONF = 0x8912
"""linux/sockios.h: the IPv4 addresses of all interfaces."""
IFREQ_BYTES = 40
"""Size of ``struct ifreq``, one entry of the answer, on a machine of 64 bits."""
MAX_ADDRESSES = 1024

IPV6_INTERFACES = Path("/proc/net/if_inet6")

_changing = threading.Lock()
_forming: Counter[str] = Counter()
"""Variables set here -> groups that are being formed with them."""


@contextmanager
def collective_environment(backend: str, address: str, deadline_s: float) -> Iterator[None]:
    """
    Set the variables of ``nccl`` or ``hccl`` during the block; raises as `interface_name` does.

    Groups of one process that are formed at the same time share the first one's variables, as a process has
    one of each.
    """
    with _changing:
        theirs = {name: value for name, value in os.environ.items() if name not in _forming}
        values = settings(backend, address, deadline_s, theirs)
        for name, value in values.items():
            os.environ.setdefault(name, value)
        _forming.update(values.keys())
    try:
        yield
    finally:
        with _changing:
            _forming.subtract(values.keys())
            for name in values:
                if not _forming[name]:
                    del _forming[name]
                    os.environ.pop(name, None)


def settings(backend: str, address: str, deadline_s: float, environment: Mapping[str, str]) -> dict[str, str]:
    """
    Variables to set in addition to ``environment``, for groups that have ``deadline_s`` seconds to form.

    Example:
        settings("hccl", "127.0.0.1", 300, {}) == LATE_IS_NO_END["hccl"] | {
            "HCCL_CONNECT_TIMEOUT": "300", "HCCL_SOCKET_IFNAME": "=lo"
        }
    """
    values = dict(LATE_IS_NO_END[backend])
    if backend == "hccl":
        least, most = HCCL_CONNECT_S
        values[HCCL_CONNECT_TIMEOUT] = str(min(max(math.ceil(deadline_s), least), most))
    if INTERFACE[backend] not in environment:
        values[INTERFACE[backend]] = f"={interface_name(address)}"  # both take "=" for "exactly this one"
    return {name: value for name, value in values.items() if name not in environment}


def interface_name(address: str) -> str:
    """Name of the network interface that has an address; raises `ConfigError` with all addresses if none has."""
    found = interface_addresses()
    for name, candidate in found:
        if candidate == address:
            return name
    raise ConfigError(f"no network interface of this machine has the address {address}; it has {listed(found)}")


def why_unreachable(mine: str, theirs: str) -> str:
    """Reason for which a process at ``theirs`` cannot connect to this machine's ``mine``; empty if none is known."""
    here, there = ip_address(mine), ip_address(theirs)
    if here.version != there.version:
        return "they use two versions of IP; name a network of one version in weights.interface"
    if here.is_loopback and not there.is_loopback and all(theirs != address for _, address in interface_addresses()):
        return (
            "only its own machine reaches a loopback address; start it with the --broker address that other machines "
            "use, or with --interface"
        )
    return ""


def interface_addresses() -> list[tuple[str, str]]:
    """Name and address of every address of this machine's network interfaces, IPv4 first."""
    return _ipv4_addresses() + _ipv6_addresses()


def listed(found: Sequence[tuple[str, str]]) -> str:
    """
    Names and addresses, for messages.

    Example:
        listed([("lo", "127.0.0.1"), ("lo", "::1")]) == "127.0.0.1 (lo), ::1 (lo)"
    """
    return ", ".join(f"{address} ({name})" for name, address in found)


def _ipv4_addresses() -> list[tuple[str, str]]:
    """Every address, also further ones of one interface."""
    answer = array("B", bytes(MAX_ADDRESSES * IFREQ_BYTES))
    start, size = answer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        used, _ = struct.unpack("iP", fcntl.ioctl(query, SIOCGIFCONF, struct.pack("iP", size, start)))
    entries = (answer[at : at + IFREQ_BYTES].tobytes() for at in range(0, used, IFREQ_BYTES))
    # struct ifreq: 16 bytes of name, to which an alias adds ":" and a label, then a sockaddr_in.
    return [(entry[:16].rstrip(b"\0").decode().partition(":")[0], socket.inet_ntoa(entry[20:24])) for entry in entries]


def _ipv6_addresses() -> list[tuple[str, str]]:
    lines = IPV6_INTERFACES.read_text(encoding="ascii").splitlines() if IPV6_INTERFACES.exists() else []
    return [(line.split()[-1], str(IPv6Address(bytes.fromhex(line.split()[0])))) for line in lines]


# ── deadline ──────────────────────────────────────────────────────────────────────────────────
# Deadline of one transfer, shared by all of its parts.

SHORTEST_S = 0.001
"""Timeout after the deadline has passed: collectives read 0 as "no limit"."""


class Deadline:
    """Counts down ``seconds`` from its construction."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start_s = time.monotonic()
        self._is_expired = False

    @property
    def has_passed(self) -> bool:
        return self._is_expired or self.elapsed_s() >= self.seconds

    def expire(self) -> None:
        """Let the deadline be over now. Thread-safe."""
        self._is_expired = True

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def left_s(self) -> float:
        """Seconds until the deadline; at least `SHORTEST_S`."""
        return SHORTEST_S if self.has_passed else max(SHORTEST_S, self.seconds - self.elapsed_s())
