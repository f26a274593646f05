"""
Exactly-once, in-order delivery between two living ends. No I/O, no clock.

    send(m) ─▶ [seq 7, ack 3, m] ─────────▶ accept ─▶ m        frame 7 is kept until an ack covers it
    accept  ◀─ [seq 4, ack 7, n] ◀───────── send(n)            below the expected number: a repeat, dropped
                                                               above it: a gap; `Resend` is requested once

A message too large for one frame is sent in parts, numbered like messages, and returned when its last part has arrived.
Messages keep their order: a later one waits behind all parts of an earlier one.

A broken TCP connection loses what ZeroMQ had queued on it, and a send that returned may still be lost. A message
therefore counts as sent only when the other end has acknowledged it. A session lasts as long as both ends. An end that
receives the middle of an unknown session answers `Reset`, and the actors open a new session. A first frame may reach
two lifetimes of the other end, and both would answer: an end may sign its frames, and a frame with another signature
ends the session too.

        all transmitted ──Resend──▶ repeat from the oldest unacknowledged frame, at most 64 in flight ─caught up──┐
           ▲          └─silence──▶ repeat from it, 1 in flight: the other end may only be busy                    │
           └──────────────────────────────────────────────────────────────────────────────────────────────────────┘
"""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from asyncrl.errors import BrokenInvariant, DecodeError, LinkReset
from asyncrl.messages.codec import Ack, Assembly, Codec, Envelope, Frame, Message, Part, Resend, Reset, cut, encode

ACK_EVERY_BYTES = 1 << 20
ACK_EVERY_MESSAGES = 32
"""An acknowledgement is due after this much was received: far below the sender's limit, so that it need not wait."""

REPEAT_FRAMES = 64
"""Frames in flight while repeating; above `ACK_EVERY_MESSAGES`, so that acknowledgements keep arriving."""
REPEAT_TICKS = 8
"""Ticks without progress before the oldest unacknowledged frame is repeated."""

FRAME_OVERHEAD_BYTES = 64
"""Added to the size of each kept frame, so that many tiny messages are bounded too."""


class Limits(Struct, frozen=True):
    """Sizes in bytes."""

    frame: int = 4 << 20
    """Largest frame on the wire: memory that a peer may take before anything is known about it."""
    message: int = 128 << 20
    """Largest message that is sent, in one frame or in parts."""
    received: int = 128 << 20
    """Largest message that is received in parts. Decoded, one of small items takes forty times as much memory."""
    unacked: int = 64 << 20
    """`Session.has_room` is False from this many unacknowledged bytes on."""


Transmit = Callable[[bytes], bool]
"""Puts one frame on the wire; False if the wire does not take it now."""


class Session:
    """
    One end of a session.

    Methods that may send take ``transmit``; a frame it refuses is transmitted again later.

    Args:
        codec: Vocabulary of messages received in parts.
        limits: The same at both ends.
        signature: Number of this end's lifetime, the same in all its sessions; 0 does not sign.
    """

    def __init__(self, codec: Codec, limits: Limits = Limits(), signature: int = 0) -> None:  # noqa: B008  immutable
        self._codec = codec
        self._limits = limits
        self._max_frame_bytes = limits.frame
        self._signature = signature
        self._known_signature = 0
        """The other end's signature; 0 until it has signed."""
        self._assembly = Assembly(limits.received)
        self._unacked: deque[bytes] = deque()
        self.unacked_bytes = 0
        self._sent = 0
        self._transmitted = 0
        self._acked = 0
        self._received = 0
        self._owed_messages = 0
        self._owed_bytes = 0
        self._asks_resend = False
        self._asked_after = -1
        self._is_repeating = False
        self._in_flight_limit = REPEAT_FRAMES
        self._acked_at_tick = 0
        self._silent_ticks = 0

    @property
    def has_room(self) -> bool:
        """True while fewer bytes than the limit are unacknowledged. One message fits whatever its size."""
        return self.unacked_bytes < self._limits.unacked

    @property
    def num_unacked(self) -> int:
        """Messages and parts sent and not yet acknowledged."""
        return len(self._unacked)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of a message whose last part has not arrived."""
        return len(self._assembly)

    @property
    def is_transmitted(self) -> bool:
        """True if every message was put on the wire, or repeated after the last loss."""
        return self._transmitted == self._sent

    def send(self, message: Message, transmit: Transmit) -> None:
        """
        Keep ``message`` until it is acknowledged, and transmit what is due.

        Raises:
            BrokenInvariant: The message is too large: the other end would end the session at every repeat.
        """
        frame = encode(Envelope(self._sent + 1, self._received, message, self._signature))
        for kept in (frame,) if len(frame) <= self._max_frame_bytes else self._in_parts(frame, type(message).__name__):
            self._sent += 1
            self._unacked.append(kept)
            self.unacked_bytes += len(kept) + FRAME_OVERHEAD_BYTES
        self._transmit_messages(transmit)
        if self.is_transmitted:
            self._acknowledged()  # The frame just transmitted carries the acknowledgement.

    def accept(self, frame: Frame, num_bytes: int, transmit: Transmit) -> Message | None:
        """
        Process one received frame, and transmit what is due after it.

        Returns:
            Its message, or the one whose last part it is; None if it brings none, repeats one, or follows a gap.

        Raises:
            LinkReset: The other end does not know this session, has restarted, or sends parts that make no message.
            DecodeError: The parts of a message have all arrived, and are not one. The session goes on without it.
        """
        body = frame.body
        if isinstance(body, Reset):
            raise LinkReset("the other end does not know this session: it restarted, or gave this end up as lost")
        self._known_signature = self._known_signature or frame.signature
        if frame.signature != self._known_signature:
            raise LinkReset("the other end restarted in the middle of this session")
        self._forget(frame.ack)
        if isinstance(body, Resend):
            self._go_back(REPEAT_FRAMES)
        message = None if isinstance(body, Ack | Resend) else self._receive(frame.seq, body, num_bytes)
        self._transmit_messages(transmit)
        if self._asks_resend:
            self._asks_resend = not self._transmit_control(Resend(), transmit)
        elif self._owed_messages >= ACK_EVERY_MESSAGES or self._owed_bytes >= ACK_EVERY_BYTES:
            self._transmit_control(Ack(), transmit)
        return message

    def tick(self, transmit: Transmit) -> None:
        """Transmit an acknowledgement that is due, and repeat messages that were not acknowledged in time."""
        made_progress = self._acked != self._acked_at_tick or not self._unacked
        self._silent_ticks = 0 if made_progress else self._silent_ticks + 1
        self._acked_at_tick = self._acked
        if self._silent_ticks >= REPEAT_TICKS:
            self._silent_ticks = 0
            self._go_back(1)
        self._transmit_messages(transmit)
        if self._asks_resend:
            self._asks_resend = not self._transmit_control(Resend(), transmit)
        else:
            self.acknowledge(transmit)

    def acknowledge(self, transmit: Transmit) -> None:
        """Transmit the acknowledgement that is due, if one is."""
        if self._owed_messages:
            self._transmit_control(Ack(), transmit)

    def _in_parts(self, frame: bytes, name: str) -> Iterator[bytes]:
        if len(frame) > self._limits.message:
            raise BrokenInvariant(
                f"{name} makes a message of {len(frame)} bytes, but at most {self._limits.message} are allowed on this "
                f"link; split it"
            )
        for part in cut(frame, self._max_frame_bytes):
            yield encode(Envelope(self._sent + 1, self._received, part, self._signature))

    def _receive(self, seq: int, body: Message | Part, num_bytes: int) -> Message | None:
        if seq > self._received + 1:
            # Once for each gap: every frame in flight behind it would ask again. If the answer is lost too, the
            # sender repeats at its next ticks.
            self._asks_resend = self._asks_resend or self._asked_after != self._received
            self._asked_after = self._received
            return None
        self._owed_messages += 1  # For a repeat as well: its acknowledgement was lost.
        self._owed_bytes += num_bytes
        if seq <= self._received:
            return None
        self._received += 1
        if isinstance(body, Part):
            whole = self._assembly.add(body)
            return None if whole is None else self._decode(whole)
        if self._assembly.is_open:
            raise LinkReset("the other end sends a message between the parts of another one")
        return body

    def _decode(self, whole: bytearray) -> Message:
        body = self._codec.decode(whole).body
        if not isinstance(body, Message):
            raise DecodeError(f"not a message: parts of a frame with {type(body).__name__}")
        return body

    def _forget(self, ack: int) -> None:
        if ack > self._sent:
            raise LinkReset("the other end acknowledges a message that was never sent: it is in another session")
        if ack <= self._acked:
            return
        for _ in range(ack - self._acked):
            self.unacked_bytes -= len(self._unacked.popleft()) + FRAME_OVERHEAD_BYTES
        self._acked = ack
        self._transmitted = max(self._transmitted, ack)
        self._in_flight_limit = REPEAT_FRAMES

    def _go_back(self, in_flight_limit: int) -> None:
        self._transmitted = self._acked
        self._in_flight_limit = in_flight_limit
        self._is_repeating = True

    def _transmit_messages(self, transmit: Transmit) -> None:
        limit = min(self._sent, self._acked + self._in_flight_limit) if self._is_repeating else self._sent
        while self._transmitted < limit:
            if not transmit(self._unacked[self._transmitted - self._acked]):
                self._is_repeating = True
                return
            self._transmitted += 1
            if self._transmitted == self._sent:
                self._is_repeating = False

    def _transmit_control(self, body: Ack | Resend, transmit: Transmit) -> bool:
        taken = transmit(encode(Envelope(0, self._received, body, self._signature)))
        if taken:
            self._acknowledged()
        return taken

    def _acknowledged(self) -> None:
        self._owed_messages = 0
        self._owed_bytes = 0
