"""
Link over ZeroMQ: a DEALER socket, messages in frames of bounded size, one `Session` with the hub.

ZeroMQ's high-water marks give no flow control (they count messages, and kernel buffers add to them): the session bounds
unacknowledged bytes, the inbox bounds received bytes.
"""

import asyncio
import contextlib
import itertools
from enum import Enum, auto

import zmq
from zmq.utils.monitor import parse_monitor_message

from asyncrl.errors import ConfigError, DecodeError, LinkClosed, LinkError, LinkReset, LinkSilent, UnknownKey, WrongHub
from asyncrl.log import get_logger
from asyncrl.messages.codec import Codec, Message, message_bytes
from asyncrl.wire.curve import LinkKeys, needs_keys, secure_link
from asyncrl.wire.link import Inbox, Link
from asyncrl.wire.session import Limits, Session
from asyncrl.wire.sockets import TICK_S, FdSocket, needs_ipv6, new_socket, routing_id

# ── connection monitor ────────────────────────────────────────────────────────────────────────
# Failed handshakes of a connecting socket: ZeroMQ retries them for ever, or gives up, and reports neither.

MAX_FAILURES = 10
"""Failed handshakes in a row after which the peer counts as another: about a second. A broker that dies fails one."""

_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""The peer does not accept this end's key; ZeroMQ does not try again."""
_GIVEN_UP = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""The peer uses no keys at all; ZeroMQ does not try again."""
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | _DENIED | _GIVEN_UP
_numbers = itertools.count()


class ConnectionRefusal(Enum):
    """Causes for which a connection fails for good."""

    HUB = auto()
    """The peer does not have the expected key."""
    KEY = auto()
    """The peer does not accept this end's key."""


class ConnectionMonitor:
    """Watches one socket; made before it connects."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._watched = socket
        self._failures = 0
        self._is_denied = False
        address = f"inproc://connections-{next(_numbers)}"
        socket.monitor(address, _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._events = socket.context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.connect(address)

    def refusal(self) -> ConnectionRefusal | None:
        """Cause that keeps the socket from connecting, as far as known now; None if nothing does."""
        while True:
            try:
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                break
            if event == _DENIED:
                self._is_denied = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failures, self._is_denied = 0, False
            else:
                self._failures += MAX_FAILURES if event == _GIVEN_UP else 1
        if self._is_denied:
            return ConnectionRefusal.KEY
        return ConnectionRefusal.HUB if self._failures >= MAX_FAILURES else None

    def close(self) -> None:
        """Stop watching; call before the watched socket closes. Idempotent."""
        if not self._events.closed:
            self._watched.disable_monitor()
            self._events.close()


# ── zmq link ──────────────────────────────────────────────────────────────────────────────────

log = get_logger()

LIMITS = Limits()
"""Limits of every socket. ZeroMQ closes a connection over a larger frame before reading it."""
MAX_INBOX_BYTES = 128 << 20
SILENT_TICKS = 120
"""Ticks with unacknowledged messages and nothing received, after which the peer counts as lost."""
LINGER_MS = 1000
"""
Time limit of closing. ZeroMQ's own lingering is not enough: a kernel that closes a connection with unread data on it
discards what it still had to send.
"""


class ZmqLink(Link):
    """
    A DEALER socket, made inside the running loop.

    Args:
        address: Address of the hub.
        identity: Name of this link at the hub; unique for each start of a node.
        codec: Vocabulary of received messages.
        keys: Required for a TCP address; see `asyncrl.wire.curve`.
        limits: The same at both ends.
        is_there: True if the hub is known to be running: its silence counts from the start. Otherwise silence counts
            from the first frame received, and the caller limits the wait for it.

    Raises:
        LinkError: ZeroMQ cannot use the address or the identity.
        ConfigError: A TCP address without keys.
    """

    def __init__(
        self,
        address: str,
        identity: str,
        codec: Codec,
        *,
        keys: LinkKeys | None = None,
        limits: Limits = LIMITS,
        is_there: bool = False,
    ) -> None:
        socket = new_socket(zmq.Context.instance(), zmq.DEALER, limits.frame)
        monitor = ConnectionMonitor(socket) if needs_keys(address) else None
        try:
            secure_link(socket, address, keys)
            socket.setsockopt(zmq.IPV6, needs_ipv6(address))
            socket.setsockopt(zmq.ROUTING_ID, routing_id(identity))
            socket.connect(address)
        except (zmq.ZMQError, ConfigError) as error:
            if monitor:
                monitor.close()
            socket.close()
            if isinstance(error, ConfigError):
                raise
            raise LinkError(f"cannot connect to {address} as {identity!r}: {error.strerror}") from error
        self.address = address
        self._codec = codec
        self._session = Session(codec, limits)
        self._inbox: Inbox[Message] = Inbox(MAX_INBOX_BYTES)
        self._error: LinkError | None = None
        self._progress = asyncio.Event()
        """Set when messages were acknowledged or the link failed."""
        self._silent_ticks = 0 if is_there else None
        """None while silence does not count."""
        self._monitor = monitor
        """For a TCP address."""
        self._has_heard = False
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    @property
    def is_acknowledged(self) -> bool:
        """True if the hub has received everything that was sent."""
        return not self._session.num_unacked

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

    async def aclose(self) -> None:
        try:
            if self._error is None:
                self._fail(LinkClosed("this link was closed"))
                self._session.acknowledge(self._transmit)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_MS / 1000):
                        while self._session.num_unacked and not self._fd.closed:
                            await self._wait_for_progress()
        finally:  # Also if the wait is cancelled: an open socket keeps its context alive.
            self._close(LINGER_MS)

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 1:
            log.warning("frame.refused", address=self.address, expected_frames=1, got=len(frames))
            return
        try:
            frame = self._codec.decode(frames[0].buffer)
            message = self._session.accept(frame, len(frames[0]), self._transmit)
        except DecodeError as error:
            log.warning("frame.refused", address=self.address, reason=str(error))
            return
        except LinkReset as error:
            self._fail(error)
            self._close()
            return
        self._silent_ticks = 0
        self._has_heard = True
        if message is not None:
            self._inbox.put(message, message_bytes(frame, len(frames[0])))
            if self._inbox.is_full:
                self._fd.pause()
        self._progress.set()

    def _on_tick(self) -> None:
        self._session.tick(self._transmit)
        if self._monitor and (refused := self._monitor.refusal()):
            self._refused(refused)
        if self._silent_ticks is None or not self._session.num_unacked:
            return
        self._silent_ticks += 1
        if self._silent_ticks == SILENT_TICKS:
            self._fail(LinkSilent(f"{self.address} has not answered for {SILENT_TICKS * TICK_S:g} s"))

    def _transmit(self, frame: bytes) -> bool:
        return self._fd.send([frame])

    def _refused(self, refusal: ConnectionRefusal) -> None:
        if refusal is ConnectionRefusal.KEY:
            self._fail(UnknownKey(f"{self.address} does not accept this key"))
        elif self._has_heard:
            self._fail(LinkReset(f"another process listens at {self.address} now"))
        else:
            self._fail(WrongHub(f"{self.address} does not have the expected key: it is not this run's broker"))
        self._close()

    def _close(self, linger_ms: int = 0) -> None:
        if self._monitor:
            self._monitor.close()
            self._monitor = None
        self._fd.close(linger_ms)

    def _fail(self, error: LinkError) -> None:
        self._error = self._error or error
        self._inbox.fail(error)
        self._progress.set()
