"""
Exactly once, in order, between two living ends: sequence numbers, acknowledgements, repetition. No I/O, no clock.

    send(m) ─▶ [seq 7, ack 3, m] ─────────▶ accept ─▶ m        7 is remembered until an ack covers it
    accept  ◀─ [seq 4, ack 7, n] ◀───────── send(n)            4 below expected: a repeat, dropped
                                                               4 above expected: a gap, `Resend` is asked for once

A TCP connection under ZeroMQ loses what it held when it breaks, and a send that "succeeded" may still vanish; so
nothing counts as sent until the other end acknowledged it. A session lives as long as both ends do. An end that gets
the middle of a session it does not know answers `Reset`, and the actors start anew with `Hello`. A first frame may
reach two lives of the other end, and both answer: so an end may sign its frames, and an answer with another signature
ends the session too.

        all transmitted ──Resend──▶ go back to the oldest unacknowledged frame, at most 64 in flight ──caught up──┐
           ▲          └─silence──▶ go back to it, 1 in flight: perhaps the other end is only busy                 │
           └──────────────────────────────────────────────────────────────────────────────────────────────────────┘
"""

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from asyncrl.errors import BrokenInvariant, DecodeError, LinkReset
from asyncrl.messages import AnyMessage, Message

ACK_EVERY_BYTES = 1 << 20
ACK_EVERY_MESSAGES = 32
"""Received since the last acknowledgement. Small against the sender's limit, so that it never waits for the tick."""

REPEAT_FRAMES = 64
"""At most so many in flight while repeating; above `ACK_EVERY_MESSAGES`, so that acknowledgements keep them coming."""
REPEAT_TICKS = 8
"""Ticks without progress before the oldest unacknowledged frame is sent again."""

FRAME_OVERHEAD_BYTES = 64
"""Counted on top of each remembered frame, so that many tiny messages are bounded too."""


Transmit = Callable[[bytes], bool]
"""Puts one frame on the wire; False if the wire will not take it now."""


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
    signature: int = 0
    """Of this life of the end that speaks; 0 is none."""


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
    """
    One end's half of a conversation.

    Every method that may have something to say takes ``transmit``, which puts one frame on the wire and returns False
    if the wire will not take it now; the frame is then due again.

    Args:
        max_unacked_bytes: Beyond that there is no room.
        max_frame_bytes: What the other end takes.
        signature: Of this end's life, the same in all its sessions; 0 does not sign.
    """

    def __init__(self, max_unacked_bytes: int, max_frame_bytes: int, signature: int = 0) -> None:
        self._max_unacked_bytes = max_unacked_bytes
        self._max_frame_bytes = max_frame_bytes
        self._signature = signature
        self._known_signature = 0
        """Of the other end, once it has signed."""
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
        """May more be sent? One frame always may, however large."""
        return self.unacked_bytes < self._max_unacked_bytes

    @property
    def num_unacked(self) -> int:
        """Messages sent and not yet acknowledged."""
        return len(self._unacked)

    @property
    def is_transmitted(self) -> bool:
        """Has every message been on the wire, at least once since the last trouble?"""
        return self._transmitted == self._sent

    def send(self, message: Message, transmit: Transmit) -> None:
        """
        Remember ``message`` until it is acknowledged, and transmit what is due.

        Raises:
            BrokenInvariant: The other end would close the connection over so large a frame, for ever again.
        """
        frame = encode(Envelope(self._sent + 1, self._received, message, self._signature))  # type: ignore[arg-type]
        if len(frame) > self._max_frame_bytes:
            raise BrokenInvariant(
                f"{type(message).__name__} makes a frame of {len(frame)} bytes, but at most {self._max_frame_bytes} "
                f"are allowed on this link; split it"
            )
        self._sent += 1
        self._unacked.append(frame)
        self.unacked_bytes += len(frame) + FRAME_OVERHEAD_BYTES
        self._transmit_messages(transmit)
        if self.is_transmitted:
            self._acknowledged()  # By the very frame that has just gone out.

    def accept(self, envelope: Envelope, num_bytes: int, transmit: Transmit) -> Message | None:
        """
        Take one frame in, and transmit what is due after it.

        Returns:
            Its message, or None if it carries none, repeats one, or leaves a gap.

        Raises:
            LinkReset: The other end does not know this session, or is another one than before.
        """
        body = envelope.body
        if isinstance(body, Reset):
            raise LinkReset("the other end restarted and does not know this session")
        self._check_signature(envelope.signature)
        self._forget(envelope.ack)
        if isinstance(body, Resend):
            self._go_back(REPEAT_FRAMES)
        message = None if isinstance(body, Ack | Resend) else self._take(envelope.seq, body, num_bytes)
        self._transmit_messages(transmit)
        if self._asks_resend:
            self._asks_resend = not self._say(Resend(), transmit)
        elif self._owed_messages >= ACK_EVERY_MESSAGES or self._owed_bytes >= ACK_EVERY_BYTES:
            self._say(Ack(), transmit)
        return message

    def tick(self, transmit: Transmit) -> None:
        """A moment has passed: transmit the acknowledgement that is owed, and repeat what nobody acknowledged."""
        made_progress = self._acked != self._acked_at_tick or not self._unacked
        self._silent_ticks = 0 if made_progress else self._silent_ticks + 1
        self._acked_at_tick = self._acked
        if self._silent_ticks >= REPEAT_TICKS:
            self._silent_ticks = 0
            self._go_back(1)
        self._transmit_messages(transmit)
        if self._asks_resend:
            self._asks_resend = not self._say(Resend(), transmit)
        else:
            self.acknowledge(transmit)

    def acknowledge(self, transmit: Transmit) -> None:
        """Transmit the acknowledgement that is owed, if one is."""
        if self._owed_messages:
            self._say(Ack(), transmit)

    def _check_signature(self, signature: int) -> None:
        self._known_signature = self._known_signature or signature
        if signature != self._known_signature:
            raise LinkReset("the other end restarted, and took up a session that its earlier life had begun")

    def _take(self, seq: int, message: Message, num_bytes: int) -> Message | None:
        if seq > self._received + 1:
            # Once for each gap: what is in flight behind it would ask for the same again. If the answer is lost too,
            # the sender's own ticks end the silence.
            self._asks_resend = self._asks_resend or self._asked_after != self._received
            self._asked_after = self._received
            return None
        self._owed_messages += 1  # For a repeat as well: it came because its acknowledgement did not.
        self._owed_bytes += num_bytes
        if seq <= self._received:
            return None
        self._received += 1
        return message

    def _forget(self, ack: int) -> None:
        if ack > self._sent:
            raise LinkReset("the other end acknowledges what was never sent: it knows another session")
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

    def _say(self, body: Ack | Resend, transmit: Transmit) -> bool:
        taken = transmit(encode(Envelope(0, self._received, body, self._signature)))
        if taken:
            self._acknowledged()
        return taken

    def _acknowledged(self) -> None:
        self._owed_messages = 0
        self._owed_bytes = 0
