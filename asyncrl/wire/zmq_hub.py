"""
Hub over ZeroMQ: a ROUTER socket, and one `Session` with each peer.

ROUTER_MANDATORY makes a send to an unknown peer an error. ROUTER_HANDOVER lets a link that reconnects replace its own
dead connection, which ROUTER would otherwise prefer for ever; the session repeats what the old connection lost. Frames
that ZeroMQ refuses for one peer wait in its session and delay no other peer.
"""

import asyncio
import contextlib
import os
import resource
import secrets
import socket
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import cast

import zmq

from asyncrl.errors import ConfigError, DecodeError, LinkError, LinkReset
from asyncrl.log import get_logger
from asyncrl.messages.codec import RESET_FRAME, Codec, Frame, Message, Part, message_bytes
from asyncrl.wire.curve import HubKeys, Owner, RefusedKey, needs_keys, secure_hub
from asyncrl.wire.link import Inbox, PartialMessages
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.refusals import Allowance, Refusals
from asyncrl.wire.session import Limits, Session
from asyncrl.wire.sockets import TICK_S, FdSocket, bind_all, new_socket, peer_name, port_of
from asyncrl.wire.zmq_link import LIMITS, LINGER_MS, MAX_INBOX_BYTES

# ── handshake guard ───────────────────────────────────────────────────────────────────────────
# Connections to a hub whose peers have not proved to know the secret: few bytes are taken of each, and few are kept.
#
# ZeroMQ takes a whole frame of a stranger, up to the size allowed to friends, before it looks at it, and accepts
# connections until the process has no descriptor left for its files. It does not tell which connection has finished
# its handshake; the kernel's counters do. A hub sends more than `PROVED_BYTES` only to a peer that knows the secret,
# and such a peer has sent less than `STRANGER_BYTES` by then.
#
# The guard looks at the descriptors of the process, at a cost that no number of short connections raises. Without
# Linux's /proc it sees nothing, and cuts nothing.

LOOK_S = 0.1
"""Interval of the looks: the bytes that strangers send meanwhile are the memory that they take."""
PROVED_BYTES = 256
"""More than greeting and WELCOME of CURVE, 234 bytes, which anybody may receive; with READY it is above 290."""
STRANGER_BYTES = 4096
"""More than greeting, HELLO and INITIATE, which have less than 1 kB."""
MAX_STRANGERS = 1024

_DESCRIPTORS = Path("/proc/self/fd")
_ESTABLISHED = 1
_COUNTERS = struct.Struct("=B119xQQ")
"""`tcp_info` of Linux: tcpi_state, tcpi_bytes_acked and tcpi_bytes_received."""


class HandshakeGuard:
    """
    Watches the connections to TCP ports of this process, over IPv4 and IPv6, inside the running loop.

    Beyond `MAX_STRANGERS`, or a quarter of the process's descriptors, the connections that have been without proof for
    longest are cut.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._max_strangers = min(MAX_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._cleared: dict[int, int] = {}
        """Descriptor by inode of each socket that need not be looked at again: a friend's, or none of these ports."""
        self._strangers: dict[int, int] = {}
        """Descriptor by inode of each connection without proof, oldest first."""
        self.num_cut = 0
        """Connections that were cut so far."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if _DESCRIPTORS.is_dir():
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        found = _sockets()
        self._cleared = {inode: fd for inode, fd in self._cleared.items() if found.get(inode) == fd}
        fresh = [inode for inode in found if inode not in self._cleared and inode not in self._strangers]
        strangers = {}
        for inode in [*self._strangers, *fresh]:
            descriptor = found.get(inode)
            if descriptor is None:
                continue
            if _with(descriptor, self._is_stranger):
                strangers[inode] = descriptor
            else:
                self._cleared[inode] = descriptor
        for inode in list(strangers)[: max(len(strangers) - self._max_strangers, 0)]:
            _with(strangers.pop(inode), self._cut)
        self._strangers = strangers

    def _is_stranger(self, connection: socket.socket) -> bool:
        """False for a friend, for a socket that is no connection to these ports, and for one that is cut now."""
        state, sent, received = _counters(connection)
        if connection.getsockname()[1] not in self._ports or state != _ESTABLISHED or sent > PROVED_BYTES:
            return False
        return received <= STRANGER_BYTES or self._cut(connection)

    def _cut(self, connection: socket.socket) -> bool:
        self.num_cut += 1
        return _end(connection)


def shut_down(descriptor: int) -> None:
    """End the connection with this descriptor, if it is one."""
    _with(descriptor, _end)


def _end(connection: socket.socket) -> bool:
    connection.shutdown(socket.SHUT_RDWR)  # ZeroMQ reads the end of the connection, and closes it.
    return False


def _sockets() -> dict[int, int]:
    """Descriptor by inode of each socket of this process."""
    found = {}
    for descriptor in map(int, os.listdir(_DESCRIPTORS)):  # noqa: PTH208  ten times a second, of up to thousands
        try:
            status = os.fstat(descriptor)
        except OSError:  # closed since
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = descriptor
    return found


def _with(descriptor: int, act: Callable[[socket.socket], bool]) -> bool:
    """
    Call ``act`` with the socket; False if it is no TCP socket any more.

    The descriptor belongs to ZeroMQ's thread, which may close it at any time. It is then another file, or another
    connection to which the same rules apply.
    """
    try:
        # The family only says how long an address may be: IPv6's is long enough for both.
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=descriptor)
    except OSError:
        return False
    try:
        return act(connection)
    except OSError:
        return False
    finally:
        connection.detach()


def _counters(connection: socket.socket) -> tuple[int, int, int]:
    """
    State of a connection, bytes that the peer has acknowledged, and bytes received from it.

    Raises:
        OSError: Not a TCP socket, or the kernel does not count.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
    if len(info) < _COUNTERS.size:
        raise OSError("the kernel does not count the bytes of a connection")
    state, sent, received = _COUNTERS.unpack(info)
    return state, sent, received


# ── zap ───────────────────────────────────────────────────────────────────────────────────────
# ZeroMQ's question whether a peer may connect (ZAP, rfc.zeromq.org/spec/27), answered in the event loop of the hub.
#
#     handshake ── public key ─▶ I/O thread ── request ─▶ ZapHandler ── 200 and the key, or 400 ─▶ I/O thread
#
# The peer's public key, in hexadecimal digits, becomes the property ``User-Id`` of each of its messages. A refused
# peer learns the status: its monitor reports it.

log = get_logger()

ENDPOINT = "inproc://zeromq.zap.01"
USER_ID = "User-Id"
NUM_FRAMES = 7
"""Version, request id, domain, address, routing id, mechanism and, for CURVE, the public key."""


class ZapHandler:
    """Answers for the hubs of one ZeroMQ context, made inside the running loop before they bind."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: HubKeys) -> None:
        self._keys = keys
        self.refused: RefusedKey | None = None
        """The last handshake with a key that has no owner."""
        socket = context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(ENDPOINT)
        self._fd = FdSocket(socket, self._on_request, lambda: None)

    def hold(self) -> None:
        """Leave handshakes waiting until `resume`; ZeroMQ begins those anew that wait for too long."""
        self._fd.pause()

    def resume(self) -> None:
        self._fd.resume()

    def close(self) -> None:
        """Refuse every later handshake. Idempotent."""
        self._fd.close()

    def _on_request(self, frames: list[zmq.Frame]) -> None:
        version, request_id, _, address, _, mechanism, *credentials = (frame.bytes for frame in frames)
        public = credentials[0] if mechanism == b"CURVE" and len(frames) == NUM_FRAMES else b""
        if self._keys.owner_of and self._keys.owner_of(public):
            status, user = [b"200", b""], public.hex()
        else:
            status, user = [b"400", b"no owner of this key"], ""
            number = self.refused.num_refused + 1 if self.refused else 1
            self.refused = RefusedKey(public.hex()[:16], address.decode(errors="replace"), number)
            if number & (number - 1) == 0:  # 1, 2, 4, 8 ...: strangers cannot fill the log
                log.warning("key.refused", key=self.refused.key, address=self.refused.address, num_refused=number)
        self._fd.send([version, request_id, *status, user.encode(), b""])


# ── zmq hub ───────────────────────────────────────────────────────────────────────────────────

MAX_UNFINISHED_BYTES = 256 << 20
"""Bytes of all messages that a hub has received in part."""
MAX_OWED_BYTES = 512 << 20
"""Unacknowledged bytes at which a hub drops a peer: it takes nothing, and asks for more."""
MAX_PEERS = 16_384
"""Sessions of one hub; beyond them, the peer that has been silent for longest is dropped."""
MAX_KEY_SESSIONS = 4096
"""Sessions of one key, so that its holders cannot have those of others dropped."""
FRAMES_PER_S, BURST_FRAMES = 10_000, 50_000
"""
Frames that the holders of one key may send a second, and at once; then connections that bring more are cut.

A node sends fewer than 1,000 a second, and a hub reads some 50,000.
"""
GONE_TICKS = 2400
"""Ticks, ten minutes, with unacknowledged messages and nothing received, after which a hub forgets a peer."""


class _Peer:
    """A hub's session with one peer."""

    def __init__(self, routing_id: bytes, public: str, socket: FdSocket, session: Session) -> None:
        self.name = peer_name(routing_id)
        self.routing_id = routing_id
        self.public = public
        """Public key of the peer in hexadecimal digits; empty if the hub does not ask for it."""
        self.session = session
        self.heard_tick = 0
        """Tick of the hub in which its last frame arrived."""
        self.descriptor: int | None = None
        """File descriptor of its connection, if the hub asks for its key."""
        self._socket = socket

    def transmit(self, frame: bytes) -> bool:
        """Send one frame; False while the peer is not connected or its queue is full."""
        return self._socket.send([self.routing_id, frame])


class ZmqHub:
    """
    A ROUTER socket, made inside the running loop.

    Args:
        bind: Address to bind, or several TCP addresses. Port 0 takes a free one, the same for all.
        codec: Vocabulary of received messages.
        keys: Required for a TCP address; see `asyncrl.wire.curve`.
        limits: The same at both ends.

    Raises:
        LinkError: The address cannot be bound.
        ConfigError: A TCP address without keys.
    """

    def __init__(
        self, bind: str | Sequence[str], codec: Codec, *, keys: HubKeys | None = None, limits: Limits = LIMITS
    ) -> None:
        binds = [bind] if isinstance(bind, str) else bind
        is_tcp = needs_keys(binds[0])
        # A context of its own for TCP: the thread that answers strangers carries no payloads over unix sockets.
        self._context = zmq.Context() if is_tcp else None
        context = self._context or zmq.Context.instance()
        self._keys = keys
        self._zap = ZapHandler(context, keys) if self._context and keys and keys.owner_of else None
        socket = new_socket(context, zmq.ROUTER, limits.frame)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            secure_hub(socket, binds[0], keys)
            self._addresses = bind_all(socket, binds)
        except (LinkError, ConfigError):
            socket.close()
            if self._zap:
                self._zap.close()
            if self._context:
                self._context.term()
            raise
        self._socket = socket
        self._codec = codec
        self._limits = limits
        self._signature = 1 << 31 | secrets.randbits(31)
        self._peers: dict[str, _Peer] = {}
        self._ticks = 0
        self._progress = asyncio.Event()
        """Set when a frame was accepted or the hub closed."""
        self._inbox: Inbox[tuple[str, Message]] = Inbox(MAX_INBOX_BYTES)
        self._unfinished = PartialMessages(MAX_UNFINISHED_BYTES)
        self.local = MemoryHub(self._inbox)
        """Peers in this process."""
        self._now_s = asyncio.get_running_loop().time
        self._allowance = Allowance(FRAMES_PER_S, BURST_FRAMES)
        """Frames by public key, if the hub asks for it."""
        self._floods = Refusals("peer.flood")
        self._refused = Refusals("frame.refused")
        self._resets = Refusals("peer.reset")
        self._guard = HandshakeGuard({port_of(address) for address in self._addresses}) if is_tcp else None
        self._fd = FdSocket(socket, self._on_frames, self._on_tick)

    @property
    def address(self) -> str:
        """The first of `addresses`."""
        return self._addresses[0]

    @property
    def addresses(self) -> list[str]:
        """The bound addresses, with their port; a wildcard stays one."""
        return list(self._addresses)

    @property
    def num_cut(self) -> int:
        """Connections without proof of a key that were cut."""
        return self._guard.num_cut if self._guard else 0

    @property
    def refused_key(self) -> RefusedKey | None:
        return self._zap.refused if self._zap else None

    def hold_handshakes(self) -> None:
        """Let nobody in and refuse nobody, until `answer_handshakes`: the owners of keys are not known yet."""
        if self._zap:
            self._zap.hold()

    def answer_handshakes(self) -> None:
        """Let in whose key has an owner, and refuse the others. Idempotent."""
        if self._zap:
            self._zap.resume()

    def owner(self, peer: str, /) -> Owner | None:
        known = self._peers.get(peer)
        return self._owner_of(known.public) if known and known.public else None

    def cut(self, publics: Collection[bytes]) -> list[str]:
        """End and return the connections of peers with these public keys, which must not have owners any more."""
        digits = {public.hex() for public in publics}
        found = [peer for peer in self._peers.values() if peer.public in digits]
        for peer in found:
            log.warning("peer.cut", peer=peer.name, key=peer.public[:16])
            self._peers.pop(peer.name)
            self._unfinished.note(peer.name, 0)
            if peer.descriptor is not None:
                shut_down(peer.descriptor)
        return [peer.name for peer in found]

    def send(self, peer: str, message: Message, /) -> None:
        self.local.send(peer, message)
        if known := self._peers.get(peer):
            known.session.send(message, known.transmit)
            if known.session.unacked_bytes > MAX_OWED_BYTES:
                self._drop(peer, f"it has not taken {known.session.unacked_bytes} bytes")

    async def receive(self) -> tuple[str, Message]:
        item = await self._inbox.get()
        if not self._inbox.is_full:
            self._fd.resume()
        return item

    def forget(self, peer: str, /) -> None:
        self.local.forget(peer)
        if known := self._peers.pop(peer, None):
            self._unfinished.note(peer, 0)
            known.transmit(RESET_FRAME)

    def listen_again(self) -> None:
        """Listen at a unix socket whose file was removed. Raises `LinkError` if that fails."""
        bind_all(self._socket, self._addresses)

    async def aclose(self) -> None:
        await self.local.aclose()
        for peer in self._peers.values():
            peer.session.acknowledge(peer.transmit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_MS / 1000):
                while not self._fd.closed and any(peer.session.num_unacked for peer in self._peers.values()):
                    self._progress.clear()
                    await self._progress.wait()
        if self._guard:
            self._guard.close()
        if self._zap:
            self._zap.close()
        self._fd.close(linger_ms=LINGER_MS)
        self._progress.set()
        if self._context:
            await asyncio.to_thread(self._context.term)  # waits while ZeroMQ sends what is left

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        routing_id = frames[0].bytes
        if self._zap and self._is_flood(routing_id, frames[-1]):
            return
        if len(frames) != 2:
            self._refused.count(peer=peer_name(routing_id), expected_frames=1, got=len(frames) - 1)
            return
        try:
            frame = self._codec.decode(frames[1].buffer)
        except DecodeError as error:
            self._refused.count(peer=peer_name(routing_id), reason=str(error))
            return
        peer = self._peers.get(peer_name(routing_id))
        if peer is None or peer.routing_id != routing_id:  # The routing id has no session.
            peer = self._new_peer(routing_id, frames[1], frame.seq)
        if peer is None:
            return
        if self._zap:
            peer.descriptor = frames[1].get(zmq.SRCFD)
        self._on_frame(peer, frame, len(frames[1]))

    def _is_flood(self, routing_id: bytes, received: zmq.Frame) -> bool:
        """True for a frame beyond what its key may send. Its connection ends; the session goes on with the next one."""
        public = cast("str", received.get(USER_ID))
        if self._allowance.take(public, self._now_s()):
            return False
        shut_down(received.get(zmq.SRCFD))
        owner = self._owner_of(public)
        self._floods.count(
            peer=peer_name(routing_id),
            key=public[:16],
            name=owner.name if owner else "",
            reason=f"more than {FRAMES_PER_S} frames a second",
        )
        return True

    def _new_peer(self, routing_id: bytes, received: zmq.Frame, seq: int) -> _Peer | None:
        """Open a session; None if the frame is not the first one of a link, or another key has the peer's name."""
        public = cast("str", received.get(USER_ID)) if self._zap else ""
        if self._zap and self._owner_of(public) is None:  # revoked since its handshake
            shut_down(received.get(zmq.SRCFD))
            return None
        peer = _Peer(routing_id, public, self._fd, Session(self._codec, self._limits, self._signature))
        earlier = self._peers.get(peer.name)
        if earlier and earlier.public != public:
            self._refused.count(peer=peer.name, reason="another key has this name")
            return None
        if seq > 1:
            peer.transmit(RESET_FRAME)
        if seq != 1:  # A bare acknowledgement of a forgotten session needs no answer.
            return None
        self._make_room(public)
        self._unfinished.note(peer.name, 0)
        self._peers[peer.name] = peer
        return peer

    def _owner_of(self, public: str) -> Owner | None:
        return self._keys.owner_of(bytes.fromhex(public)) if self._keys and self._keys.owner_of else None

    def _on_frame(self, peer: _Peer, frame: Frame, num_bytes: int) -> None:
        message = None
        peer.heard_tick = self._ticks
        try:
            message = peer.session.accept(frame, num_bytes, peer.transmit)
        except LinkReset as error:
            self._drop(peer.name, str(error))
            return
        except DecodeError as error:
            self._refused.count(peer=peer.name, reason=str(error))
        self._progress.set()
        if isinstance(frame.body, Part):
            for silent in self._unfinished.note(peer.name, peer.session.unfinished_bytes):
                self._drop(
                    silent,
                    f"it has not finished a message, and all unfinished ones exceed {MAX_UNFINISHED_BYTES} bytes",
                )
        if message is not None:
            self._inbox.put((peer.name, message), message_bytes(frame, num_bytes))
            if self._inbox.is_full:
                self._fd.pause()

    def _make_room(self, public: str) -> None:
        """Drop a peer if there are too many, or too many of this key."""
        if public and len(self._peers) >= MAX_KEY_SESSIONS:
            of_key = [peer for peer in self._peers.values() if peer.public == public]
            if len(of_key) >= MAX_KEY_SESSIONS:
                self._drop_silent(of_key, f"{MAX_KEY_SESSIONS} peers with its key")
        if len(self._peers) >= MAX_PEERS:
            self._drop_silent(self._peers.values(), f"{MAX_PEERS} peers")

    def _drop_silent(self, peers: Iterable[_Peer], among: str) -> None:
        silent = min(peers, key=lambda peer: peer.heard_tick)
        self._drop(silent.name, f"it has been silent for longest of {among}")

    def _drop(self, peer: str, reason: str) -> None:
        self._resets.count(peer=peer, reason=reason)
        self.forget(peer)

    def _on_tick(self) -> None:
        self._ticks += 1
        gone = []
        for peer in self._peers.values():
            peer.session.tick(peer.transmit)
            if peer.session.num_unacked and self._ticks - peer.heard_tick >= GONE_TICKS:
                gone.append(peer.name)
        for name in gone:
            self._drop(name, f"it has not been heard for {GONE_TICKS * TICK_S:g} s")
