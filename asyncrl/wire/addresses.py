"""
Addresses of sockets, checked before ZeroMQ reads them: ``tcp://HOST:PORT`` or ``ipc://PATH``.

    tcp://10.0.0.1:5570   tcp://[2001:db8::1]:5570   tcp://gpu-7:5570    one host
    tcp://0.0.0.0:5570    tcp://[::]:5570   tcp://*:5570                 wildcards: every address of the machine
    tcp://*:5571          from a broker: the host at which the node reached it, see `announced` and `reached`
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

from asyncrl.errors import ConfigError

TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+|\*):(?P<port>\d+)")
LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
MAX_PATH = 107
"""Bytes that the kernel takes for the path of a Unix socket."""


def check_address(address: str, setting: str, *, binds: bool = False) -> None:
    """
    Raise `ConfigError` unless a socket can connect to ``address``.

    Args:
        setting: Key or option that names the address, for messages.
        binds: The socket listens there: port 0, which takes a free one, and wildcards are allowed.
    """
    if address.startswith("ipc://"):
        _check_path(address.removeprefix("ipc://"), address, setting)
        return
    match = TCP.fullmatch(address)
    if match is None or (match["host"].startswith("[") and ip_of(match["host"]) is None):
        raise ConfigError(f"{setting} is {address!r}: expected tcp://HOST:PORT or ipc://PATH")
    if is_wildcard(address) and not binds:
        raise ConfigError(
            f"{setting} is {address!r}: a wildcard is an address to listen on; expected the host that listens"
        )
    port, lowest = int(match["port"]), 0 if binds else 1
    if not lowest <= port <= MAX_PORT:
        raise ConfigError(f"{setting} is {address!r}: expected a port from {lowest} to {MAX_PORT}, got {port}")


def is_loopback(address: str) -> bool:
    """True if only processes of the same machine can connect to ``address``, so wildcards are not loopback."""
    if address.startswith("ipc://"):
        return True
    host = host_of(address)
    ip = ip_of(host)
    return host == "localhost" if ip is None else ip.is_loopback


def is_wildcard(address: str) -> bool:
    """True if ``address`` stands for all addresses of a machine."""
    host = host_of(address)
    ip = ip_of(host)
    return host == "*" or (ip is not None and ip.is_unspecified)


def host_of(address: str) -> str:
    """Host of a TCP address, IPv6 without brackets; empty for a unix socket."""
    return _tcp(address)["host"].strip("[]") if address.startswith("tcp://") else ""


def port_of(address: str) -> int:
    """Port of a TCP address."""
    return int(_tcp(address)["port"])


def tcp(host: str, port: int) -> str:
    """
    Address of a host and a port.

    Example:
        tcp("::1", 5570) == "tcp://[::1]:5570"
    """
    return f"tcp://{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """A host as it is written before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def bound_again(binds: Sequence[str], before: Sequence[str]) -> list[str]:
    """``binds`` for another start: where any free port will do, that of ``before``, the addresses of the last start."""
    again = list(binds)
    for i, (bind, old) in enumerate(zip(binds, before, strict=False)):
        if bind == "ipc://*" and old.startswith("ipc://"):
            again[i] = old
        elif bind.startswith("tcp://") and old.startswith("tcp://") and port_of(bind) == 0:
            again[i] = tcp(host_of(bind), port_of(old))
    return again


def announced(bound: Sequence[str], advertise: str = "") -> str:
    """
    The address of a socket as a broker tells it to its nodes.

    Args:
        bound: The addresses at which the socket listens; with several, all on one port.
        advertise: ``broker.advertise``; empty lets every node use the host at which it reached the broker.
    """
    if not bound[0].startswith("tcp://"):
        return bound[0]
    if advertise:
        return tcp(advertise, port_of(bound[0]))
    return tcp("*", port_of(bound[0])) if len(bound) > 1 or is_wildcard(bound[0]) else bound[0]


def reached(address: str, via: str = "") -> str:
    """
    The address to connect to, of an `announced` one, for a process that reached the broker at ``via``.

    A broker with a unix socket, and without ``via``, is on this machine.

    Example:
        reached("tcp://*:5571", via="tcp://gpu-7:5570") == "tcp://gpu-7:5571"
    """
    return tcp(host_of(via) or LOOPBACK, port_of(address)) if address.startswith("tcp://*:") else address


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that ``host`` is, with or without brackets; None for a name."""
    with suppress(ValueError):
        return ip_address(host.strip("[]"))
    return None


def _tcp(address: str) -> re.Match[str]:
    if (match := TCP.fullmatch(address)) is None:
        raise ConfigError(f"{address!r} is not an address: expected tcp://HOST:PORT")
    return match


def _check_path(path: str, address: str, setting: str) -> None:
    if not path or "\0" in path:
        raise ConfigError(
            f"{setting} is {address!r}: expected ipc:// and the path of a socket, such as ipc:///run/broker"
        )
    if (size := len(path.encode())) > MAX_PATH:
        raise ConfigError(
            f"{setting} is {address!r}: its path has {size} bytes, and a Unix socket takes at most {MAX_PATH}; use a "
            f"shorter one"
        )
