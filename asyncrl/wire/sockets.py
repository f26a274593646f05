"""
A ZeroMQ socket in an asyncio loop, driven by its file descriptor.

`zmq.asyncio` costs nine times more CPU per message, and a receiver that is always ready never yields: heartbeats stop
under load. Here the loop watches the descriptor, and each wake-up reads for at most `DRAIN_S`. The descriptor is
edge-triggered: the socket's events are checked again in the same loop iteration after every send.
"""

import asyncio
import errno
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import cast

import zmq

from asyncrl.errors import LinkError

DRAIN_S = 0.001
"""A budget of time and not of messages: decoding 256 batches may take two seconds."""

NOBLOCK, POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)
"""Plain numbers: arithmetic on pyzmq's enums costs as much as a receive."""

TICK_S = 0.25
"""An idle socket processes what its I/O thread queued only when its events are read (libzmq issue 954)."""


class FdSocket:
    """
    Owner of one socket.

    Args:
        on_message: Called with the frames of each message.
        on_tick: Called every `TICK_S` seconds.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        on_message: Callable[[list[zmq.Frame]], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._on_tick = on_tick
        self._loop = asyncio.get_running_loop()
        self._fd = socket.fileno()
        self._scheduled = False
        self._paused = False
        self.closed = False
        self._loop.add_reader(self._fd, self._check)
        self._tick_handle = self._loop.call_later(TICK_S, self._tick)
        self._schedule_check()

    def send(self, frames: list[bytes]) -> bool:
        """Send without waiting. False if ZeroMQ's queue is full, a ROUTER has no such peer, or the socket is closed."""
        if self.closed:
            return False
        self._schedule_check()
        try:
            self._socket.send_multipart(frames, NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def pause(self) -> None:
        """Stop receiving."""
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._schedule_check()

    def close(self, linger_ms: int = 0) -> None:
        """Close at once; ZeroMQ may go on sending for ``linger_ms``. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._tick_handle.cancel()
        self._loop.remove_reader(self._fd)
        self._socket.close(linger=linger_ms)

    def _schedule_check(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._scheduled = False
        if self.closed:
            return
        events = cast("int", self._socket.getsockopt(zmq.EVENTS))
        if events & POLLIN and not self._paused:
            self._drain()

    def _drain(self) -> None:
        deadline = self._loop.time() + DRAIN_S
        while not (self._paused or self.closed):
            try:
                frames = self._receive()
            except zmq.Again:
                return
            self._on_message(frames)
            if self._loop.time() > deadline:
                break
        self._schedule_check()

    def _receive(self) -> list[zmq.Frame]:
        """One message. `recv_multipart` would ask the socket after each frame, at twice the cost."""
        frames = [self._socket.recv(NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(NOBLOCK, copy=False))
        return frames

    def _tick(self) -> None:
        self._tick_handle = self._loop.call_later(TICK_S, self._tick)
        self._check()
        self._on_tick()


# ── options ───────────────────────────────────────────────────────────────────────────────────
# Options of every ZeroMQ socket, set before bind or connect, because ZeroMQ ignores some of them afterwards.

VANISHED_MS = 15_000
"""Time without an answer of the other machine's kernel after which a TCP connection is made again."""


def new_socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_frame_bytes: int) -> "zmq.Socket[bytes]":
    """A socket of this kind, which refuses larger frames: ZeroMQ closes a connection before reading one."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 1000)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    # The kernel looks for peers that vanished. ZeroMQ's own heartbeat aborts the process when it is due on a broken
    # connection of which frames wait to be read (assertion in stream_engine_base.cpp of libzmq 4.3.5).
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
    socket.setsockopt(zmq.TCP_MAXRT, VANISHED_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.BACKLOG, 4096)
    return socket


# ── routing id ────────────────────────────────────────────────────────────────────────────────
# Routing ids: names of links at a ROUTER socket, each with a token that only the hub learns.
#
# ROUTER_HANDOVER gives a routing id to whoever names it last, and peers know each other's names.

TOKEN_MARK = "~"
TOKEN_BYTES = 8


def routing_id(name: str) -> bytes:
    """Routing id of a link with this name at the hub."""
    return f"{name}{TOKEN_MARK}{secrets.token_hex(TOKEN_BYTES)}".encode()


def peer_name(routing_id: bytes) -> str:
    """Name of the link with this routing id."""
    name, mark, _ = routing_id.decode(errors="replace").rpartition(TOKEN_MARK)
    return name if mark else routing_id.decode(errors="replace")


# ── tcp ───────────────────────────────────────────────────────────────────────────────────────
# Addresses in ZeroMQ's terms: the IP version of each, one port for several, and one process at a unix socket.
#
# ZeroMQ uses one IP version per address, and of a name only the first address that it finds. It replaces a unix
# socket that is there, whoever listens at it: its peers would be given to the newcomer.

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
