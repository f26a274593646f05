"""
Link and Hub over ZeroMQ: DEALER to ROUTER, one frame a message, a `Session` for each pair of living ends.

Options are set before bind or connect, because ZeroMQ ignores some of them afterwards. ROUTER_MANDATORY makes sends to
nobody an error instead of silence. ROUTER_HANDOVER lets a link that reconnects before its dead connection was noticed
take its place, where it would be ignored for ever; what the old connection held, the session repeats. High-water marks
are no flow control (they count messages, and kernel buffers add to them): the session bounds unacknowledged bytes, the
inbox bounds received ones. What ZeroMQ will not take for one peer waits in that peer's session, and nobody behind it.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import structlog
import zmq

from asyncrl.actor.fd_socket import TICK_S, FdSocket
from asyncrl.actor.inbox import Inbox
from asyncrl.actor.memory import MemoryHub, MemoryLink
from asyncrl.actor.session import RESET_FRAME, Envelope, Session, decode
from asyncrl.errors import DecodeError, LinkClosed, LinkError, LinkReset
from asyncrl.messages import Message

log = structlog.get_logger()

CONTROL_FRAME_BYTES = 16 << 20
DATA_FRAME_BYTES = 256 << 20
"""A larger frame closes the connection before it is read. Metadata never comes near the first."""

MAX_UNACKED_BYTES = 64 << 20
MAX_INBOX_BYTES = 128 << 20
SILENT_TICKS = 120
"""Ticks (of 0.25 s) with something unacknowledged and nothing heard, after which the peer is gone."""

LINGER_MS = 1000
"""
How long closing may take. ZeroMQ's own lingering does not suffice: a kernel that closes a connection while something
unread has arrived on it throws away what it still had to send.
"""


def _socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_frame_bytes: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 1000)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.BACKLOG, 4096)
    return socket


class ZmqLink:
    """
    One DEALER. Make it inside the running loop; ``identity`` must be unique for each incarnation.

    Args:
        address: The hub's.
        identity: What the hub calls us.
        max_frame_bytes: A larger frame closes the connection.
        is_there: Somebody has said that the hub is there: its silence counts from the start. Otherwise it counts once
            it was heard, and how long to wait for that is the caller's affair.

    Raises:
        LinkError: The address or the identity is not one ZeroMQ can use.
    """

    def __init__(
        self, address: str, identity: str, *, max_frame_bytes: int = CONTROL_FRAME_BYTES, is_there: bool = False
    ) -> None:
        socket = _socket(zmq.Context.instance(), zmq.DEALER, max_frame_bytes)
        try:
            socket.setsockopt(zmq.ROUTING_ID, identity.encode())
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close()
            raise LinkError(f"cannot connect to {address} as {identity!r}: {error.strerror}") from error
        self.address = address
        self._session = Session(MAX_UNACKED_BYTES, max_frame_bytes)
        self._inbox: Inbox[Message] = Inbox(MAX_INBOX_BYTES)
        self._error: LinkError | None = None
        self._moved = asyncio.Event()
        """Something was acknowledged, or the link has failed."""
        self._silent_ticks = 0 if is_there else None
        """None as long as silence does not count."""
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    async def send(self, message: Message, /) -> None:
        """Hand a message over; waits while too many bytes are unacknowledged."""
        while self._error is None and not self._session.has_room:
            await self._movement()
        if self._error is not None:
            raise self._error
        self._session.send(message, self._transmit)

    async def receive(self) -> Message:
        """The next message."""
        message = await self._inbox.get()
        if not self._inbox.is_full:
            self._fd.resume()
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """`receive` until the link is closed."""
        while True:
            try:
                message = await self.receive()
            except LinkClosed:
                return
            yield message

    async def aclose(self) -> None:
        """Close, once everything sent has been acknowledged or a second has passed. Idempotent."""
        if self._error is None:
            self._fail(LinkClosed("this link was closed"))
            self._session.acknowledge(self._transmit)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_MS / 1000):
                    while self._session.num_unacked and not self._fd.closed:
                        await self._movement()
        self._fd.close(linger_ms=LINGER_MS)

    async def _movement(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 1:
            log.warning("frame.refused", address=self.address, expected_frames=1, got=len(frames))
            return
        try:
            message = self._session.accept(decode(frames[0].buffer), len(frames[0]), self._transmit)
        except DecodeError as error:
            log.warning("frame.refused", address=self.address, reason=str(error))
            return
        except LinkReset as error:
            self._fail(error)
            self._fd.close()
            return
        self._silent_ticks = 0
        if message is not None:
            self._inbox.put(message, len(frames[0]))
            if self._inbox.is_full:
                self._fd.pause()
        self._moved.set()

    def _on_tick(self) -> None:
        self._session.tick(self._transmit)
        if self._silent_ticks is None or not self._session.num_unacked:
            return
        self._silent_ticks += 1
        if self._silent_ticks == SILENT_TICKS:
            self._fail(LinkError(f"{self.address} has been silent for {SILENT_TICKS * TICK_S:g} s: it is gone"))

    def _transmit(self, frame: bytes) -> bool:
        return self._fd.send([frame])

    def _fail(self, error: LinkError) -> None:
        self._error = self._error or error
        self._inbox.fail(error)
        self._moved.set()


class _Peer:
    """What a hub keeps for each peer."""

    def __init__(self, routing_id: bytes, socket: FdSocket, max_frame_bytes: int, signature: int) -> None:
        self.name = routing_id.decode(errors="replace")
        self.session = Session(MAX_UNACKED_BYTES, max_frame_bytes, signature)
        self._routing_id = routing_id
        self._socket = socket

    def transmit(self, frame: bytes) -> bool:
        """False while the peer is not connected or takes nothing: its session remembers, and tries again."""
        return self._socket.send([self._routing_id, frame])


class ZmqHub:
    """
    One ROUTER. Make it inside the running loop.

    Raises:
        LinkError: The address cannot be bound.
    """

    def __init__(self, bind: str, *, max_frame_bytes: int = CONTROL_FRAME_BYTES) -> None:
        socket = _socket(zmq.Context.instance(), zmq.ROUTER, max_frame_bytes)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            socket.bind(bind)
        except zmq.ZMQError as error:
            socket.close()
            if error.errno == zmq.EADDRINUSE:
                raise LinkError(
                    f"cannot bind {bind}: the port is in use; stop what holds it, or bind port 0"
                ) from error
            raise LinkError(f"cannot bind {bind}: {error.strerror}") from error
        self._address = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._max_frame_bytes = max_frame_bytes
        self._signature = 1 << 31 | secrets.randbits(31)
        self._peers: dict[str, _Peer] = {}
        self._moved = asyncio.Event()
        """Something was heard, or the hub has closed."""
        self._inbox: Inbox[tuple[str, Message]] = Inbox(MAX_INBOX_BYTES)
        self._local = MemoryHub(self._inbox)
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    @property
    def address(self) -> str:
        """What peers connect to."""
        return self._address

    def connect_local(self, peer: str) -> MemoryLink:
        """A link for an actor of this very process."""
        return self._local.connect(peer)

    def send(self, peer: str, message: Message, /) -> None:
        """Queue a message for one peer; a peer that is gone is no error."""
        self._local.send(peer, message)
        if known := self._peers.get(peer):
            known.session.send(message, known.transmit)

    async def receive(self) -> tuple[str, Message]:
        """The next message and who sent it."""
        item = await self._inbox.get()
        if not self._inbox.is_full:
            self._fd.resume()
        return item

    def forget(self, peer: str, /) -> None:
        """Drop a peer's session and tell it so; if it speaks again it is told again."""
        self._local.forget(peer)
        if known := self._peers.pop(peer, None):
            known.transmit(RESET_FRAME)

    async def aclose(self) -> None:
        """Close, once everything sent has been acknowledged or a second has passed. Idempotent."""
        await self._local.aclose()
        for peer in self._peers.values():
            peer.session.acknowledge(peer.transmit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_MS / 1000):
                while not self._fd.closed and any(peer.session.num_unacked for peer in self._peers.values()):
                    self._moved.clear()
                    await self._moved.wait()
        self._fd.close(linger_ms=LINGER_MS)
        self._moved.set()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        routing_id = frames[0].bytes
        if len(frames) != 2:
            log.warning("frame.refused", peer=routing_id, expected_frames=1, got=len(frames) - 1)
            return
        try:
            envelope = decode(frames[1].buffer)
        except DecodeError as error:
            log.warning("frame.refused", peer=routing_id, reason=str(error))
            return
        peer = self._peers.get(routing_id.decode(errors="replace"))
        if peer is None:
            peer = _Peer(routing_id, self._fd, self._max_frame_bytes, self._signature)
            if envelope.seq > 1:
                peer.transmit(RESET_FRAME)
            if envelope.seq != 1:  # A bare acknowledgement of a forgotten session needs no answer.
                return
            self._peers[peer.name] = peer
        self._on_envelope(peer, envelope, len(frames[1]))

    def _on_envelope(self, peer: _Peer, envelope: Envelope, num_bytes: int) -> None:
        try:
            message = peer.session.accept(envelope, num_bytes, peer.transmit)
        except LinkReset as error:
            log.warning("peer.reset", peer=peer.name, reason=str(error))
            self.forget(peer.name)
            return
        self._moved.set()
        if message is not None:
            self._inbox.put((peer.name, message), num_bytes)
            if self._inbox.is_full:
                self._fd.pause()

    def _on_tick(self) -> None:
        for peer in self._peers.values():
            peer.session.tick(peer.transmit)
