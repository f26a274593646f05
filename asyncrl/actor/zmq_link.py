"""
Link and Hub over ZeroMQ: DEALER to ROUTER, one frame per message, one `Session` per pair of ends.

Options are set before bind or connect, because ZeroMQ ignores some of them afterwards. ROUTER_MANDATORY makes a send to
an unknown peer an error. ROUTER_HANDOVER lets a link that reconnects replace its own dead connection, which ROUTER
would otherwise prefer for ever; the session repeats what the old connection lost. ZeroMQ's high-water marks give no
flow control (they count messages, and kernel buffers add to them): the session bounds unacknowledged bytes, the inbox
bounds received bytes. Frames that ZeroMQ refuses for one peer wait in its session and delay no other peer.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import structlog
import zmq

from asyncrl.actor.codec import RESET_FRAME, Codec, Frame
from asyncrl.actor.fd_socket import TICK_S, FdSocket
from asyncrl.actor.inbox import Inbox
from asyncrl.actor.memory import MemoryHub, MemoryLink
from asyncrl.actor.message import Message
from asyncrl.actor.session import Session
from asyncrl.errors import DecodeError, LinkClosed, LinkError, LinkReset

log = structlog.get_logger()

CONTROL_FRAME_BYTES = 16 << 20
DATA_FRAME_BYTES = 256 << 20
"""Largest frame of a control and of a data socket. ZeroMQ closes the connection over a larger one before reading it."""

MAX_UNACKED_BYTES = 64 << 20
MAX_INBOX_BYTES = 128 << 20
SILENT_TICKS = 120
"""Ticks with unacknowledged messages and nothing received, after which the peer counts as lost."""

LINGER_MS = 1000
"""
Time limit of closing. ZeroMQ's own lingering is not enough: a kernel that closes a connection with unread data on it
discards what it still had to send.
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
    A DEALER socket, made inside the running loop.

    Args:
        address: Address of the hub.
        identity: Name of this link at the hub; unique for each start of a node.
        codec: Vocabulary of received messages.
        max_frame_bytes: Largest frame in either direction.
        is_there: True if the hub is known to be running: its silence counts from the start. Otherwise silence counts
            from the first frame received, and the caller limits the wait for it.

    Raises:
        LinkError: ZeroMQ cannot use the address or the identity.
    """

    def __init__(
        self,
        address: str,
        identity: str,
        codec: Codec,
        *,
        max_frame_bytes: int = CONTROL_FRAME_BYTES,
        is_there: bool = False,
    ) -> None:
        socket = _socket(zmq.Context.instance(), zmq.DEALER, max_frame_bytes)
        try:
            socket.setsockopt(zmq.ROUTING_ID, identity.encode())
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close()
            raise LinkError(f"cannot connect to {address} as {identity!r}: {error.strerror}") from error
        self.address = address
        self._codec = codec
        self._session = Session(MAX_UNACKED_BYTES, max_frame_bytes)
        self._inbox: Inbox[Message] = Inbox(MAX_INBOX_BYTES)
        self._error: LinkError | None = None
        self._progress = asyncio.Event()
        """Set when messages were acknowledged or the link failed."""
        self._silent_ticks = 0 if is_there else None
        """None while silence does not count."""
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    async def send(self, message: Message, /) -> None:
        while self._error is None and not self._session.has_room:
            await self._wait_for_progress()
        if self._error is not None:
            raise self._error
        self._session.send(message, self._transmit)

    async def receive(self) -> Message:
        message = await self._inbox.get()
        if not self._inbox.is_full:
            self._fd.resume()
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over `receive` until the link is closed."""
        while True:
            try:
                message = await self.receive()
            except LinkClosed:
                return
            yield message

    async def aclose(self) -> None:
        if self._error is None:
            self._fail(LinkClosed("this link was closed"))
            self._session.acknowledge(self._transmit)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_MS / 1000):
                    while self._session.num_unacked and not self._fd.closed:
                        await self._wait_for_progress()
        self._fd.close(linger_ms=LINGER_MS)

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 1:
            log.warning("frame.refused", address=self.address, expected_frames=1, got=len(frames))
            return
        try:
            message = self._session.accept(self._codec.decode(frames[0].buffer), len(frames[0]), self._transmit)
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
        self._progress.set()

    def _on_tick(self) -> None:
        self._session.tick(self._transmit)
        if self._silent_ticks is None or not self._session.num_unacked:
            return
        self._silent_ticks += 1
        if self._silent_ticks == SILENT_TICKS:
            self._fail(LinkError(f"{self.address} has not answered for {SILENT_TICKS * TICK_S:g} s"))

    def _transmit(self, frame: bytes) -> bool:
        return self._fd.send([frame])

    def _fail(self, error: LinkError) -> None:
        self._error = self._error or error
        self._inbox.fail(error)
        self._progress.set()


class _Peer:
    """A hub's session with one peer."""

    def __init__(self, routing_id: bytes, socket: FdSocket, max_frame_bytes: int, signature: int) -> None:
        self.name = routing_id.decode(errors="replace")
        self.session = Session(MAX_UNACKED_BYTES, max_frame_bytes, signature)
        self._routing_id = routing_id
        self._socket = socket

    def transmit(self, frame: bytes) -> bool:
        """Send one frame; False while the peer is not connected or its queue is full."""
        return self._socket.send([self._routing_id, frame])


class ZmqHub:
    """
    A ROUTER socket, made inside the running loop.

    Args:
        bind: Address to bind.
        codec: Vocabulary of received messages.
        max_frame_bytes: Largest frame in either direction.

    Raises:
        LinkError: The address cannot be bound.
    """

    def __init__(self, bind: str, codec: Codec, *, max_frame_bytes: int = CONTROL_FRAME_BYTES) -> None:
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
        self._codec = codec
        self._max_frame_bytes = max_frame_bytes
        self._signature = 1 << 31 | secrets.randbits(31)
        self._peers: dict[str, _Peer] = {}
        self._progress = asyncio.Event()
        """Set when a frame was accepted or the hub closed."""
        self._inbox: Inbox[tuple[str, Message]] = Inbox(MAX_INBOX_BYTES)
        self._local = MemoryHub(self._inbox)
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    @property
    def address(self) -> str:
        return self._address

    def connect_local(self, peer: str) -> MemoryLink:
        """A link for an actor in this process."""
        return self._local.connect(peer)

    def send(self, peer: str, message: Message, /) -> None:
        self._local.send(peer, message)
        if known := self._peers.get(peer):
            known.session.send(message, known.transmit)

    async def receive(self) -> tuple[str, Message]:
        item = await self._inbox.get()
        if not self._inbox.is_full:
            self._fd.resume()
        return item

    def forget(self, peer: str, /) -> None:
        self._local.forget(peer)
        if known := self._peers.pop(peer, None):
            known.transmit(RESET_FRAME)

    async def aclose(self) -> None:
        await self._local.aclose()
        for peer in self._peers.values():
            peer.session.acknowledge(peer.transmit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_MS / 1000):
                while not self._fd.closed and any(peer.session.num_unacked for peer in self._peers.values()):
                    self._progress.clear()
                    await self._progress.wait()
        self._fd.close(linger_ms=LINGER_MS)
        self._progress.set()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        routing_id = frames[0].bytes
        if len(frames) != 2:
            log.warning("frame.refused", peer=routing_id, expected_frames=1, got=len(frames) - 1)
            return
        try:
            frame = self._codec.decode(frames[1].buffer)
        except DecodeError as error:
            log.warning("frame.refused", peer=routing_id, reason=str(error))
            return
        peer = self._peers.get(routing_id.decode(errors="replace"))
        if peer is None:
            peer = _Peer(routing_id, self._fd, self._max_frame_bytes, self._signature)
            if frame.seq > 1:
                peer.transmit(RESET_FRAME)
            if frame.seq != 1:  # A bare acknowledgement of a forgotten session needs no answer.
                return
            self._peers[peer.name] = peer
        self._on_frame(peer, frame, len(frames[1]))

    def _on_frame(self, peer: _Peer, frame: Frame, num_bytes: int) -> None:
        try:
            message = peer.session.accept(frame, num_bytes, peer.transmit)
        except LinkReset as error:
            log.warning("peer.reset", peer=peer.name, reason=str(error))
            self.forget(peer.name)
            return
        self._progress.set()
        if message is not None:
            self._inbox.put((peer.name, message), num_bytes)
            if self._inbox.is_full:
                self._fd.pause()

    def _on_tick(self) -> None:
        for peer in self._peers.values():
            peer.session.tick(peer.transmit)
