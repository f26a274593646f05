"""
ZeroMQ's question whether a peer may connect (ZAP, rfc.zeromq.org/spec/27), answered in the event loop of the hub.

    handshake ── public key ─▶ I/O thread ── request ─▶ ZapHandler ── 200 and the key, or 400 ─▶ I/O thread

The peer's public key, in hexadecimal digits, becomes the property ``User-Id`` of each of its messages. A refused peer
learns the status: its monitor reports it.
"""

import zmq

from asyncrl.actor.sockets.curve import HubKeys, RefusedKey
from asyncrl.actor.sockets.fd_socket import FdSocket
from asyncrl.log import get_logger

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
            self._count_refusal(public, address.decode(errors="replace"))
        self._fd.send([version, request_id, *status, user.encode(), b""])

    def _count_refusal(self, public: bytes, address: str) -> None:
        number = self.refused.num_refused + 1 if self.refused else 1
        self.refused = RefusedKey(public.hex()[:16], address, number)
        if number & (number - 1) == 0:  # 1, 2, 4, 8 ...: strangers cannot fill the log
            log.warning("key.refused", key=self.refused.key, address=address, num_refused=number)
