"""
Addresses in ZeroMQ's terms: the IP version of each, one port for several, and one process at a unix socket.

ZeroMQ uses one IP version per address, and of a name only the first address that it finds. It replaces a unix socket
that is there, whoever listens at it: its peers would be given to the newcomer.
"""

import errno
import re
import socket
import time
from collections.abc import Sequence

import zmq

from asyncrl.errors import LinkError

CLOSING_S = 1.0
"""Time in which the listener of a socket that was closed is gone: ZeroMQ does that in a thread of its own."""
_NO_SUCH_ADDRESS = "no network interface of this machine has that address"
_CAUSES = {
    errno.EADDRINUSE: "the port is in use; stop what holds it, or bind port 0",
    errno.EADDRNOTAVAIL: _NO_SUCH_ADDRESS,
    errno.ENODEV: _NO_SUCH_ADDRESS,  # a name that cannot be found
}


def needs_ipv6(address: str) -> bool:
    """
    True if a socket needs ZeroMQ's IPv6 option to listen at ``tcp://HOST:PORT`` or to connect to it.

    With the option, the wildcards ``*`` and ``[::]`` take IPv4 connections too, and a name means its IPv6 address, or
    its IPv4 address if it has no other. A hub that listens on IPv4 alone may have a name with both, so the option is
    used only for names without an IPv4 address. Looking up a name blocks.
    """
    if not address.startswith("tcp://"):
        return False
    host = address.removeprefix("tcp://").rpartition(":")[0]
    if host == "*" or host.startswith("["):
        return True
    try:
        socket.getaddrinfo(host, None, socket.AF_INET)
    except (OSError, UnicodeError):  # it has no IPv4 address, or is not known yet
        return True
    return False


def bind_all(hub: "zmq.Socket[bytes]", addresses: Sequence[str]) -> list[str]:
    """
    Bind a socket to all ``addresses``, and return them with their ports. Port 0 takes a free one, the same for all.

    Raises:
        LinkError: One of them cannot be bound, or is a unix socket at which a process listens; those before it are.
    """
    bound: list[str] = []
    for address in addresses:
        asked = re.sub(r":0$", f":{port_of(bound[0])}", address) if bound else address
        _require_unheard(asked)
        hub.setsockopt(zmq.IPV6, needs_ipv6(asked))
        try:
            hub.bind(asked)
        except zmq.ZMQError as error:
            raise LinkError(f"cannot bind {asked}: {_CAUSES.get(error.errno or 0, error.strerror)}") from error
        bound.append(hub.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
    return bound


def _require_unheard(address: str) -> None:
    """Raise `LinkError` if a process listens at a unix socket. One that a killed process left has no listener."""
    path = address.removeprefix("ipc://")
    if path in (address, "*"):
        return
    gives_up_s = time.monotonic() + CLOSING_S
    while _is_heard(path):
        if time.monotonic() >= gives_up_s:
            raise LinkError(f"cannot bind {address}: a process listens there already; stop it, or give another address")
        time.sleep(CLOSING_S / 100)


def _is_heard(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # So many connect to the listener that it has not taken all of them yet.
        except OSError:
            return False
    return True


def require_bindable(addresses: Sequence[str]) -> None:
    """Raise `LinkError` if one of the TCP ``addresses`` cannot be bound now. They are free again afterwards."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as probe:
        bind_all(probe, addresses)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
