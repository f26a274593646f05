"""
Link and Hub over ZeroMQ: DEALER to ROUTER, one frame a message, a `Session` for each pair of living ends.

Options are set before bind or connect, because ZeroMQ ignores some of them afterwards. ROUTER_MANDATORY makes sends to
nobody an error instead of silence. High-water marks are no flow control (they count messages, and kernel buffers add to
them): the session bounds unacknowledged bytes, the inbox bounds received ones.
"""

import asyncio
from collections.abc import AsyncIterator

import structlog
import zmq

from asyncrl.actor.fd_socket import FdSocket
from asyncrl.actor.inbox import Inbox
from asyncrl.actor.memory import MemoryHub, MemoryLink
from asyncrl.actor.session import RESET_FRAME, Envelope, Resend, Session, decode
from asyncrl.errors import DecodeError, LinkClosed, LinkError, LinkReset
from asyncrl.messages import Message

log = structlog.get_logger()

CONTROL_FRAME_BYTES = 16 << 20
DATA_FRAME_BYTES = 256 << 20
"""A larger frame closes the connection before it is read. Metadata never comes near the first."""

MAX_UNACKED_BYTES = 64 << 20
MAX_INBOX_BYTES = 128 << 20
RESEND_TICKS = 8
"""Ticks (of 0.25 s) without progress before unacknowledged frames are sent again."""
RESEND_FRAMES = 64
"""At most so many at once: the rest follows when these are acknowledged."""

LINGER_MS = 1000


def _socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_frame_bytes: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 1000)
    socket.setsockopt(zmq.RCVHWM, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    socket.setsockopt(zmq.BACKLOG, 4096)
    return socket


class _Resending:
    """Counts ticks without progress of one session."""

    def __init__(self) -> None:
        self._last_unacked: bytes | None = None
        self._ticks = 0

    def due(self, session: Session) -> list[bytes]:
        """Frames to send again at this tick."""
        oldest = session.unacked(1)
        head = oldest[0] if oldest else None
        self._ticks = self._ticks + 1 if head is not None and head is self._last_unacked else 0
        self._last_unacked = head
        if self._ticks < RESEND_TICKS:
            return []
        self._ticks = 0
        return session.unacked(RESEND_FRAMES)


class ZmqLink:
    """One DEALER. Make it inside the running loop; ``identity`` must be unique for each incarnation."""

    def __init__(self, address: str, identity: str, *, max_frame_bytes: int = CONTROL_FRAME_BYTES) -> None:
        socket = _socket(zmq.Context.instance(), zmq.DEALER, max_frame_bytes)
        socket.setsockopt(zmq.ROUTING_ID, identity.encode())
        socket.connect(address)
        self.address = address
        self._session = Session(MAX_UNACKED_BYTES)
        self._resending = _Resending()
        self._inbox: Inbox[Message] = Inbox(MAX_INBOX_BYTES)
        self._error: LinkError | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    async def send(self, message: Message, /) -> None:
        """Hand a message over; waits while too many bytes are unacknowledged."""
        while self._error is None and not self._session.has_room:
            self._room.clear()
            await self._room.wait()
        if self._error is not None:
            raise self._error
        self._fd.send([self._session.send(message)])

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
        """Send what is queued, within a second, and close. Idempotent."""
        if self._error is None:
            self._fail(LinkClosed("this link was closed"))
            await self._fd.flushed(LINGER_MS / 1000)
        self._fd.close(linger_ms=LINGER_MS)

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 1:
            log.warning("frame.refused", address=self.address, expected_frames=1, got=len(frames))
            return
        try:
            envelope = decode(frames[0].buffer)
            message = self._session.accept(envelope, len(frames[0]))
        except DecodeError as error:
            log.warning("frame.refused", address=self.address, reason=str(error))
            return
        except LinkReset as error:
            self._fail(error)
            return
        if isinstance(envelope.body, Resend):
            self._send_all(self._session.unacked(RESEND_FRAMES))
        elif self._session.wants_resend(envelope):
            self._fd.send([self._session.resend_request()])
        elif message is not None:
            self._inbox.put(message, len(frames[0]))
            if self._inbox.is_full:
                self._fd.pause()
        if self._session.ack_is_due:
            self._fd.send([self._session.ack()])
        if self._session.has_room:
            self._room.set()

    def _on_tick(self) -> None:
        if self._session.owes_ack:
            self._fd.send([self._session.ack()])
        self._send_all(self._resending.due(self._session))

    def _send_all(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._fd.send([frame])

    def _fail(self, error: LinkError) -> None:
        self._error = self._error or error
        self._inbox.fail(error)
        self._room.set()


class _Peer:
    """What a hub keeps for each peer."""

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id
        self.name = routing_id.decode(errors="replace")
        self.session = Session(MAX_UNACKED_BYTES)
        self.resending = _Resending()


class ZmqHub:
    """One ROUTER. Make it inside the running loop."""

    def __init__(self, bind: str, *, max_frame_bytes: int = CONTROL_FRAME_BYTES) -> None:
        socket = _socket(zmq.Context.instance(), zmq.ROUTER, max_frame_bytes)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            socket.bind(bind)
        except zmq.ZMQError as error:
            socket.close()
            if error.errno == zmq.EADDRINUSE:
                raise LinkError(
                    f"cannot bind {bind}: the port is in use; stop what holds it, or bind port 0"
                ) from error
            raise LinkError(f"cannot bind {bind}: {error.strerror}") from error
        self._address = socket.last_endpoint.rstrip(b"\0").decode()
        self._peers: dict[str, _Peer] = {}
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
            self._send_frame(known, known.session.send(message))

    async def receive(self) -> tuple[str, Message]:
        """The next message and who sent it."""
        item = await self._inbox.get()
        if not self._inbox.is_full:
            self._fd.resume()
        return item

    def forget(self, peer: str, /) -> None:
        """Drop a peer's session: if it speaks again it is told to start anew."""
        self._local.forget(peer)
        self._peers.pop(peer, None)

    async def aclose(self) -> None:
        """Send what is queued, within a second, and close. Idempotent."""
        await self._local.aclose()
        await self._fd.flushed(LINGER_MS / 1000)
        self._fd.close(linger_ms=LINGER_MS)

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
        name = routing_id.decode(errors="replace")
        peer = self._peers.get(name)
        if peer is None:
            if envelope.seq != 1:
                if envelope.seq:  # A message; bare acknowledgements of a forgotten session need no answer.
                    self._send_raw(routing_id, RESET_FRAME)
                return
            peer = self._peers[name] = _Peer(routing_id)
        self._on_envelope(peer, envelope, len(frames[1]))

    def _on_envelope(self, peer: _Peer, envelope: Envelope, num_bytes: int) -> None:
        try:
            message = peer.session.accept(envelope, num_bytes)
        except LinkReset:
            self.forget(peer.name)
            return
        if isinstance(envelope.body, Resend):
            for old in peer.session.unacked(RESEND_FRAMES):
                self._send_frame(peer, old)
        elif peer.session.wants_resend(envelope):
            self._send_frame(peer, peer.session.resend_request())
        elif message is not None:
            self._inbox.put((peer.name, message), num_bytes)
            if self._inbox.is_full:
                self._fd.pause()
        if peer.session.ack_is_due:
            self._send_frame(peer, peer.session.ack())

    def _on_tick(self) -> None:
        for peer in list(self._peers.values()):
            if peer.session.owes_ack:
                self._send_frame(peer, peer.session.ack())
            for frame in peer.resending.due(peer.session):
                self._send_frame(peer, frame)

    def _send_frame(self, peer: _Peer, frame: bytes) -> None:
        self._send_raw(peer.routing_id, frame)

    def _send_raw(self, routing_id: bytes, frame: bytes) -> None:
        try:
            self._fd.send([routing_id, frame])
        except zmq.ZMQError as error:
            # The peer is not connected now. Its session remembers the frame; it is sent again if the peer returns.
            if error.errno != zmq.EHOSTUNREACH:
                raise
