"""Over a wire that loses, repeats or reorders frames, the receiver gets every message once, in order."""

import contextlib
import tracemalloc
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import BrokenInvariant, DecodeError, LinkReset
from asyncrl.messages.codec import RESET_FRAME, Ack, Envelope, Frame, Message, Part, Resend, cut, encode
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import StoreSet
from asyncrl.messages.wire import CODEC
from asyncrl.wire.session import (
    ACK_EVERY_BYTES,
    ACK_EVERY_MESSAGES,
    FRAME_OVERHEAD_BYTES,
    REPEAT_FRAMES,
    REPEAT_TICKS,
    Limits,
    Session,
    Transmit,
)

decode = CODEC.decode
SMALL = Limits(frame=200, message=4000, received=4000, unacked=1 << 20)
"""Limits under which most of `sized` messages are sent in parts."""


def transmit_to(wire: list[bytes]) -> Transmit:
    def transmit(frame: bytes) -> bool:
        wire.append(frame)
        return True

    return transmit


class End:
    """One end of a conversation over a wire that is a list."""

    def __init__(self, limits: Limits = Limits(), signature: int = 0) -> None:  # noqa: B008  immutable
        self.session = Session(CODEC, limits, signature=signature)
        self.message: Callable[[int], Message] = Offer if limits is not SMALL else sized
        self.wire: list[bytes] = []
        self.is_refused = False
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def transmit(self, frame: bytes) -> bool:
        if not self.is_refused:
            self.wire.append(frame)
        return not self.is_refused

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            message = self.message(len(self.sent))
            self.sent.append(message)
            self.session.send(message, self.transmit)

    def accept(self, frame: bytes) -> None:
        message = self.session.accept(decode(frame), len(frame), self.transmit)
        if message is not None:
            self.received.append(message)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.session.tick(self.transmit)


def sized(number: int) -> StoreSet:
    """A message of 0 to 900 bytes."""
    return StoreSet("group", str(number), bytes([number % 256]) * (number % 7 * 150))


def deliver(sender: End, receiver: End) -> int:
    """Deliver all frames in order; returns their number."""
    frames, sender.wire = sender.wire, []
    for frame in frames:
        receiver.accept(frame)
    return len(frames)


def settle(a: End, b: End) -> int:
    """Deliver until both wires are empty; returns the number of frames."""
    total = 0
    while num := deliver(a, b) + deliver(b, a):
        total += num
    return total


def bodies(wire: list[bytes], kind: type) -> list[Frame]:
    return [envelope for envelope in map(decode, wire) if isinstance(envelope.body, kind)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "deliver", "lose", "repeat", "swap", "tick", "refuse", "take again"]),
        st.booleans(),
        st.integers(0, 200),
    ),
    max_size=80,
)


def disturb(sender: End, receiver: End, action: str, number: int) -> None:
    """Apply one event to the wire from ``sender`` to ``receiver``."""
    place = number % max(len(sender.wire), 1)
    match action:
        case "send":
            sender.send(number)
        case "deliver" if sender.wire:
            receiver.accept(sender.wire.pop(0))
        case "lose":
            del sender.wire[place : place + number]
        case "repeat" if sender.wire:
            sender.wire.append(sender.wire[place])
        case "swap" if sender.wire:
            sender.wire.append(sender.wire.pop(place))
        case "tick":
            sender.tick(number % 12)
        case "refuse" | "take again":
            sender.is_refused = action == "refuse"


@pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["whole", "in parts"])
@given(steps=STEPS)
def test_the_receiver_sees_exactly_the_sent_sequence_over_any_wire(
    limits: Limits, steps: list[tuple[str, bool, int]]
) -> None:
    ends = End(limits), End(limits)
    for action, from_second, number in steps:
        disturb(ends[from_second], ends[not from_second], action, number)
        for one, other in (ends, ends[::-1]):
            assert one.received == other.sent[: len(one.received)]

    for end in ends:
        end.is_refused = False
    for _ in range(4 * REPEAT_TICKS):
        settle(*ends)
        for end in ends:
            end.tick()
    settle(*ends)

    for one, other in (ends, ends[::-1]):
        assert one.received == other.sent
        assert one.session.is_transmitted
        assert (one.session.num_unacked, one.session.unacked_bytes) == (0, 0)
        assert one.session.unfinished_bytes == 0


def test_a_long_loss_is_repaired_without_waiting_for_ticks() -> None:
    a, b = End(), End()
    a.send(500)
    del a.wire[:300]
    num_frames = settle(a, b)
    assert b.received == a.sent
    # 200 behind the gap, one request, 500 again, an acknowledgement for every 32.
    assert num_frames == 200 + 1 + 500 + 500 // ACK_EVERY_MESSAGES


def test_a_gap_causes_one_resend_request() -> None:
    a, b = End(), End()
    a.send(100)
    del a.wire[0]
    deliver(a, b)
    assert len(bodies(b.wire, Resend)) == 1


def test_new_messages_wait_while_old_ones_are_repeated() -> None:
    a, b = End(), End()
    a.send(100)
    a.wire.clear()
    a.accept(encode(Envelope(0, 0, Resend())))
    assert [decode(frame).seq for frame in a.wire] == list(range(1, REPEAT_FRAMES + 1))
    a.send()
    assert len(a.wire) == REPEAT_FRAMES
    settle(a, b)
    assert b.received == a.sent


def test_silence_repeats_only_the_oldest_frame() -> None:
    """The receiver may only be busy, so the other frames may have arrived."""
    a = End()
    a.send(10)
    a.wire.clear()
    a.tick(REPEAT_TICKS)
    assert [decode(frame).seq for frame in a.wire] == [1]
    a.tick(REPEAT_TICKS - 1)
    assert len(a.wire) == 1
    a.tick()
    assert [decode(frame).seq for frame in a.wire] == [1, 1]


def test_progress_postpones_repetition() -> None:
    a = End()
    a.send(10)
    a.wire.clear()
    for acked in range(1, 10):
        a.tick(REPEAT_TICKS - 1)
        a.accept(encode(Envelope(0, acked, Ack())))
    assert a.wire == []


def test_a_refused_frame_is_sent_again_in_order() -> None:
    a, b = End(), End()
    a.send(3)
    a.is_refused = True
    a.send(3)
    assert not a.session.is_transmitted
    a.is_refused = False
    a.send(3)
    assert [decode(frame).seq for frame in a.wire] == list(range(1, 10))
    settle(a, b)
    assert b.received == a.sent


def test_a_refused_acknowledgement_or_request_is_sent_at_the_next_tick() -> None:
    b = End()
    b.is_refused = True
    b.accept(encode(Envelope(1, 0, Offer(0))))
    b.tick()
    b.is_refused = False
    b.tick()
    b.is_refused = True
    b.accept(encode(Envelope(3, 0, Offer(0))))
    b.is_refused = False
    b.tick(2)
    assert [type(decode(frame).body) for frame in b.wire] == [Ack, Resend]


def test_a_repeated_frame_is_dropped_and_acknowledged_again() -> None:
    b = End()
    frame = encode(Envelope(1, 0, Offer(7)))
    for _ in range(3):
        b.accept(frame)
        b.tick()
    assert b.received == [Offer(7)]
    assert [decode(frame).ack for frame in b.wire] == [1, 1, 1]


def test_an_acknowledgement_is_sent_after_a_number_of_messages_or_bytes() -> None:
    a, b = End(), End()
    a.send(ACK_EVERY_MESSAGES - 1)
    deliver(a, b)
    assert b.wire == []
    a.send()
    deliver(a, b)
    assert [decode(frame).ack for frame in b.wire] == [ACK_EVERY_MESSAGES]

    b = End()
    b.session.accept(Envelope(1, 0, Offer(0)), ACK_EVERY_BYTES, b.transmit)
    assert [decode(frame).ack for frame in b.wire] == [1]


def test_a_message_carries_the_pending_acknowledgement() -> None:
    a, b = End(), End()
    a.send(5)
    deliver(a, b)
    b.send()
    b.tick()
    assert [(envelope.seq, envelope.ack) for envelope in map(decode, b.wire)] == [(1, 5)]


def test_unacknowledged_bytes_limit_the_room_to_send() -> None:
    frame_bytes = len(encode(Envelope(1, 0, Offer(0)))) + FRAME_OVERHEAD_BYTES
    a = End(Limits(unacked=3 * frame_bytes))
    for num in range(1, 4):
        assert a.session.has_room
        a.send()
        assert a.session.unacked_bytes == num * frame_bytes
    assert not a.session.has_room
    a.accept(encode(Envelope(0, 1, Ack())))
    assert a.session.has_room


def test_a_large_message_travels_in_frames_of_bounded_size() -> None:
    a, b = End(SMALL), End(SMALL)
    message = StoreSet("group", "key", bytes(range(256)) * 10)
    a.session.send(message, a.transmit)
    assert len(a.wire) > 2560 / SMALL.frame
    assert max(len(frame) for frame in a.wire) <= SMALL.frame
    deliver(a, b)
    assert b.received == [message]
    assert b.session.unfinished_bytes == 0


def test_the_part_that_repairs_a_gap_does_not_end_the_message_early() -> None:
    a, b = End(SMALL), End(SMALL)
    a.session.send(sized(6), a.transmit)
    lost = a.wire.pop(1)
    deliver(a, b)
    assert b.received == []
    b.accept(lost)
    assert b.received == []
    settle(a, b)
    assert b.received == [sized(6)]


def test_an_oversize_message_is_never_sent() -> None:
    session = Session(CODEC, Limits(frame=200, message=1000))
    wire: list[bytes] = []
    with pytest.raises(BrokenInvariant, match=r"StoreSet makes a message of 10\d\d bytes, but at most 1000"):
        session.send(StoreSet("group", "key", b"x" * 1000), transmit_to(wire))
    assert (wire, session.num_unacked) == ([], 0)


def test_an_end_may_receive_less_than_it_sends() -> None:
    a, b = End(SMALL), End(Limits(frame=200, message=4000, received=1000, unacked=1 << 20))
    b.session.send(sized(6), b.transmit)
    settle(a, b)
    assert a.received == [sized(6)]
    with pytest.raises(LinkReset, match=r"a message of 1\d\d\d bytes; at most 1000 fit"):
        b.accept(encode(Envelope(1, 0, Part(1001, memoryview(b"x")))))


def parts_end() -> tuple[End, Callable[[object], None]]:
    """An end that receives bodies one after the other."""
    end = End(SMALL)
    seqs = count(1)
    return end, lambda body: end.accept(encode(Envelope(next(seqs), 0, body)))


HOSTILE_PARTS = {
    "too large": [Part(4001, memoryview(b"x"))],
    "too large to exist": [Part(1 << 62, memoryview(b"x"))],
    "negative": [Part(-1, memoryview(b"x"))],
    "empty": [Part(100, memoryview(b""))],
    "no size": [Part(0, memoryview(b""))],
    "longer than announced": [Part(10, memoryview(b"x" * 11))],
    "longer in sum": [Part(10, memoryview(b"x" * 6)), Part(10, memoryview(b"x" * 6))],
    "another size": [Part(10, memoryview(b"x" * 6)), Part(11, memoryview(b"x"))],
    "a message between": [Part(10, memoryview(b"x" * 6)), Offer(1)],
}


@pytest.mark.parametrize("bodies", HOSTILE_PARTS.values(), ids=HOSTILE_PARTS.keys())
def test_parts_that_make_no_message_reset_the_session(bodies: list[object]) -> None:
    end, accept = parts_end()
    *first, last = bodies
    for body in first:
        accept(body)
    with pytest.raises(LinkReset):
        accept(last)
    assert end.received == []
    assert end.session.unfinished_bytes <= 10


@pytest.mark.parametrize(
    "whole", [b"x" * 300, encode(Envelope(1, 0, Ack())), encode(Envelope(1, 0, Part(9, memoryview(b""))))]
)
def test_parts_of_something_else_are_refused_and_the_session_goes_on(whole: bytes) -> None:
    end, accept = parts_end()
    *first, last = cut(whole, SMALL.frame) if len(whole) > SMALL.frame else [Part(len(whole), memoryview(whole))]
    for part in first:
        accept(part)
    with pytest.raises(DecodeError, match="not a message"):
        accept(last)
    accept(Offer(1))
    assert end.received == [Offer(1)]


def test_tiny_parts_take_no_more_memory_than_their_bytes() -> None:
    """A view would keep the frame of each part."""
    _, accept = parts_end()
    tracemalloc.start()
    for _ in range(3000):
        accept(Part(4000, memoryview(b"x")))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 30_000


@given(st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=40), st.booleans()), max_size=40))
def test_no_sequence_of_parts_holds_more_than_one_message(parts: list[tuple[int, bytes, bool]]) -> None:
    end, accept = parts_end()
    for num_bytes, data, is_message in parts:
        with contextlib.suppress(DecodeError):
            try:
                accept(Offer(1) if is_message else Part(num_bytes, memoryview(data)))
            except LinkReset:
                return
        assert end.session.unfinished_bytes < 60


def test_a_reset_frame_resets_the_session() -> None:
    with pytest.raises(LinkReset, match="restarted"):
        End().accept(RESET_FRAME)


def test_an_acknowledgement_of_an_unsent_frame_resets_the_session() -> None:
    a = End()
    a.send(2)
    with pytest.raises(LinkReset, match="never sent"):
        a.accept(encode(Envelope(0, 3, Ack())))


def test_an_answer_of_another_incarnation_resets_the_session() -> None:
    """A repeated first frame may begin a session with both incarnations."""
    a = End()
    a.send()
    earlier, later = End(signature=7), End(signature=8)
    for b in (earlier, later):
        b.accept(a.wire[0])
        b.send(2)

    a.accept(earlier.wire[0])
    with pytest.raises(LinkReset, match="in the middle of this session"):
        a.accept(later.wire[1])


def test_frames_without_a_signature_are_accepted() -> None:
    a, b = End(), End(signature=7)
    a.send(2)
    for frame in a.wire:
        b.accept(frame)
    assert b.received == a.sent
