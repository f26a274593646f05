"""
Exactly once, in order, between two living ends: sequence numbers, acknowledgements, resending. No I/O, no clock.

    send(m) ─▶ [seq 7, ack 3, m] ─────────▶ accept ─▶ m        7 is remembered until an ack covers it
    accept  ◀─ [seq 4, ack 7, n] ◀───────── send(n)            4 below expected: a repeat, dropped
                                                               4 above expected: a gap, ``Resend`` is due

A TCP connection under ZeroMQ loses what it held when it breaks, and a send that "succeeded" may still vanish; so
nothing counts as sent until the other end acknowledged it. A session lives as long as both ends do. An end that gets
the middle of a session it does not know answers `Reset`, and the actors start anew with `Hello`.
"""

from collections import deque

import msgspec
from msgspec import Struct

from asyncrl.errors import DecodeError, LinkReset
from asyncrl.messages import AnyMessage, Message

ACK_EVERY_BYTES = 1 << 20
ACK_EVERY_MESSAGES = 32
"""Received since the last acknowledgement. Small against the sender's limit, so that it never waits for the tick."""

FRAME_OVERHEAD_BYTES = 64
"""Counted on top of each remembered frame, so that many tiny messages are bounded too."""


class Ack(Struct, frozen=True, array_like=True, tag=True):
    """Nothing new; see the acknowledgement beside me."""


class Resend(Struct, frozen=True, array_like=True, tag=True):
    """Something is missing after the acknowledgement beside me."""


class Reset(Struct, frozen=True, array_like=True, tag=True):
    """I do not know this session."""


class Envelope(Struct, frozen=True, array_like=True):
    """What one frame holds."""

    seq: int
    """1, 2, 3, ... for messages; 0 for `Ack`, `Resend` and `Reset`."""
    ack: int
    """Every seq up to here has arrived."""
    body: AnyMessage | Ack | Resend | Reset


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """One frame."""
    return _encoder.encode(envelope)


def decode(frame: bytes | memoryview) -> Envelope:
    """
    Read one frame. Binary fields stay views into it.

    Raises:
        DecodeError: It is not one of ours.
    """
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec raises the last two for bad UTF-8 and for deep nesting: one hostile frame must not end the loop.
        raise DecodeError(f"not a message: {error}") from error


RESET_FRAME = encode(Envelope(0, 0, Reset()))


class Session:
    """One end's half of a conversation."""

    def __init__(self, max_unacked_bytes: int) -> None:
        self._max_unacked_bytes = max_unacked_bytes
        self._unacked: deque[tuple[int, bytes]] = deque()
        self.unacked_bytes = 0
        self._sent = 0
        self._received = 0
        self._owed_messages = 0
        self._owed_bytes = 0

    @property
    def has_room(self) -> bool:
        """May more be sent? One frame always may, however large."""
        return self.unacked_bytes < self._max_unacked_bytes

    @property
    def num_unacked(self) -> int:
        """Messages sent and not yet acknowledged."""
        return len(self._unacked)

    @property
    def owes_ack(self) -> bool:
        """Has anything arrived that was not acknowledged yet?"""
        return self._owed_messages > 0

    @property
    def ack_is_due(self) -> bool:
        """So much has arrived that the sender should hear of it now, not at the next tick."""
        return self._owed_messages >= ACK_EVERY_MESSAGES or self._owed_bytes >= ACK_EVERY_BYTES

    def send(self, message: Message) -> bytes:
        """The frame that carries ``message``, remembered until acknowledged."""
        self._sent += 1
        frame = encode(Envelope(self._sent, self._received, message))  # type: ignore[arg-type]
        self._unacked.append((self._sent, frame))
        self.unacked_bytes += len(frame) + FRAME_OVERHEAD_BYTES
        self._paid()
        return frame

    def accept(self, envelope: Envelope, num_bytes: int) -> Message | None:
        """
        Take one frame in. Returns its message, or None if it carries none, repeats one, or leaves a gap.

        After a gap the caller sends `resend_request`; `wants_resend` says so.

        Raises:
            LinkReset: The other end does not know this session.
        """
        self._forget(envelope.ack)
        body = envelope.body
        if isinstance(body, Reset):
            raise LinkReset("the other end restarted and does not know this session")
        if isinstance(body, Ack | Resend):
            return None
        self._owed_messages += 1
        self._owed_bytes += num_bytes
        if envelope.seq != self._received + 1:
            return None
        self._received += 1
        return body

    def wants_resend(self, envelope: Envelope) -> bool:
        """Did this frame skip something?"""
        return envelope.seq > self._received

    def ack(self) -> bytes:
        """A frame that only acknowledges."""
        self._paid()
        return encode(Envelope(0, self._received, Ack()))

    def resend_request(self) -> bytes:
        """A frame that asks for everything after what has arrived."""
        self._paid()
        return encode(Envelope(0, self._received, Resend()))

    def unacked(self, limit: int) -> list[bytes]:
        """The oldest remembered frames, to be sent again."""
        return [frame for _, frame in list(self._unacked)[:limit]]

    def _forget(self, ack: int) -> None:
        while self._unacked and self._unacked[0][0] <= ack:
            _, frame = self._unacked.popleft()
            self.unacked_bytes -= len(frame) + FRAME_OVERHEAD_BYTES

    def _paid(self) -> None:
        self._owed_messages = 0
        self._owed_bytes = 0
