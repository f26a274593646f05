"""Failed handshakes of a connecting socket: ZeroMQ retries them for ever, or gives up, and reports neither."""

import itertools
from enum import Enum, auto

import zmq
from zmq.utils.monitor import parse_monitor_message

MAX_FAILURES = 10
"""Failed handshakes in a row after which the peer counts as another: about a second. A broker that dies fails one."""

_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""The peer does not accept this end's key; ZeroMQ does not try again."""
_GIVEN_UP = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""The peer uses no keys at all; ZeroMQ does not try again."""
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | _DENIED | _GIVEN_UP
_numbers = itertools.count()


class Refusal(Enum):
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

    def refusal(self) -> Refusal | None:
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
            return Refusal.KEY
        return Refusal.HUB if self._failures >= MAX_FAILURES else None

    def close(self) -> None:
        """Stop watching; call before the watched socket closes. Idempotent."""
        if not self._events.closed:
            self._watched.disable_monitor()
            self._events.close()
