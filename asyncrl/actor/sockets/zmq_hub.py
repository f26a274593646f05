"""
Hub over ZeroMQ: a ROUTER socket, and one `Session` with each peer.

ROUTER_MANDATORY makes a send to an unknown peer an error. ROUTER_HANDOVER lets a link that reconnects replace its own
dead connection, which ROUTER would otherwise prefer for ever; the session repeats what the old connection lost. Frames
that ZeroMQ refuses for one peer wait in its session and delay no other peer.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Collection, Iterable, Sequence
from typing import cast

import zmq

from asyncrl.actor.allowance import Allowance
from asyncrl.actor.codec import RESET_FRAME, Codec, Frame, Part, message_bytes
from asyncrl.actor.inbox import Inbox, Unfinished
from asyncrl.actor.memory import MemoryHub, MemoryLink
from asyncrl.actor.message import Message
from asyncrl.actor.refusals import Refusals
from asyncrl.actor.session import Limits, Session
from asyncrl.actor.sockets.curve import HubKeys, Owner, RefusedKey, needs_keys, secure_hub
from asyncrl.actor.sockets.fd_socket import TICK_S, FdSocket
from asyncrl.actor.sockets.handshake_guard import HandshakeGuard, shut_down
from asyncrl.actor.sockets.options import new_socket
from asyncrl.actor.sockets.routing_id import peer_name
from asyncrl.actor.sockets.tcp import bind_all, port_of
from asyncrl.actor.sockets.zap import USER_ID, ZapHandler
from asyncrl.actor.sockets.zmq_link import LIMITS, LINGER_MS, MAX_INBOX_BYTES
from asyncrl.errors import ConfigError, DecodeError, LinkError, LinkReset
from asyncrl.log import get_logger

log = get_logger()

MAX_UNFINISHED_BYTES = 256 << 20
"""Bytes of all messages that a hub has received in part."""
MAX_OWED_BYTES = 512 << 20
"""Unacknowledged bytes at which a hub drops a peer: it takes nothing, and asks for more."""
MAX_PEERS = 16_384
"""Sessions of one hub; beyond them, the peer that has been silent for longest is dropped."""
MAX_KEY_SESSIONS = 4096
"""The same for the sessions of one key, so that its holders cannot have those of others dropped."""
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
        """Its public key in hexadecimal digits; empty if the hub does not ask for it."""
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
        keys: Required for a TCP address; see `asyncrl.actor.sockets.curve`.
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
        self._unfinished = Unfinished(MAX_UNFINISHED_BYTES)
        self._local = MemoryHub(self._inbox)
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

    @property
    def num_refused_frames(self) -> int:
        """Frames of peers with a key that were not read: no message, or more than the key may send."""
        return self._refused.num + self._floods.num

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

    def connect_local(self, peer: str) -> MemoryLink:
        """A link for an actor in this process."""
        return self._local.connect(peer)

    def send(self, peer: str, message: Message, /) -> None:
        self._local.send(peer, message)
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
        self._local.forget(peer)
        if known := self._peers.pop(peer, None):
            self._unfinished.note(peer, 0)
            known.transmit(RESET_FRAME)

    def listen_again(self) -> None:
        """Listen at a unix socket whose file was removed. Raises `LinkError` if that fails."""
        bind_all(self._socket, self._addresses)

    async def aclose(self) -> None:
        await self._local.aclose()
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
        peer = self._known(routing_id) or self._new_peer(routing_id, frames[1], frame.seq)
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

    def _known(self, routing_id: bytes) -> _Peer | None:
        """The peer with this routing id; None if it has no session."""
        peer = self._peers.get(peer_name(routing_id))
        return peer if peer and peer.routing_id == routing_id else None

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
