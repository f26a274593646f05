"""A frame survives encoding and decoding; any other bytes raise `DecodeError`."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import DecodeError
from asyncrl.messages.codec import (
    PART_OVERHEAD_BYTES,
    Ack,
    Assembly,
    Codec,
    Envelope,
    Frame,
    Message,
    Resend,
    Reset,
    Value,
    cut,
    encode,
    message_bytes,
)
from asyncrl.messages.rollout import Offer
from asyncrl.messages.wire import CODEC

decode = CODEC.decode


class Ping(Message, frozen=True):
    data: memoryview


@pytest.mark.parametrize("body", [Ack(), Resend(), Reset(), Offer(3)], ids=repr)
def test_a_frame_survives_the_round_trip(body: Message | Ack | Resend | Reset) -> None:
    frame: Frame = Envelope(7, 3, body, 5)
    assert decode(encode(frame)) == frame


def test_a_codec_decodes_only_its_own_messages() -> None:
    pings = Codec(Ping)
    frame = encode(Envelope(1, 0, Ping(memoryview(b"abc"))))
    body = pings.decode(frame).body
    assert isinstance(body, Ping)
    assert bytes(body.data) == b"abc"
    with pytest.raises(DecodeError, match="not a message"):
        decode(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([1, 0, ["Offer", 1]])[:-1] + b"\x91" * 100_000,
        msgspec.msgpack.encode([1, 0, ["Offer", 1, None]])[:-1] + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x01\x00\xc6\xff\xff\xff\xff",
        msgspec.msgpack.encode([1, 0, ["Unheard", 1]]),
        msgspec.msgpack.encode([1, 0, ["Offer", "one"]]),
        msgspec.msgpack.encode([1, 0, ["Bye", "?"]])[:-1] + b"\xff",
        msgspec.msgpack.encode([1.5, 0, ["Ack"]]),
    ],
    ids=lambda frame: repr(frame[:16]),
)
def test_malformed_bytes_raise_a_decode_error(frame: bytes) -> None:
    with pytest.raises(DecodeError, match="not a message"):
        decode(frame)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_decode_errors(frame: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode(frame)


@given(st.binary(min_size=1, max_size=5000), st.integers(PART_OVERHEAD_BYTES + 1, 500))
def test_a_frame_is_whole_again_after_its_last_part(frame: bytes, max_bytes: int) -> None:
    parts = list(cut(frame, max_bytes))
    assembly = Assembly(5000)
    joined = [assembly.add(part) for part in parts]
    assert joined == [None] * (len(parts) - 1) + [frame]
    assert (len(assembly), assembly.is_open) == (0, False)


@given(st.integers(0, 1 << 63), st.integers(0, 1 << 63), st.integers(0, 1 << 32))
def test_a_part_makes_a_frame_of_at_most_the_size_it_was_cut_for(seq: int, ack: int, signature: int) -> None:
    for part in cut(bytes(200_000), 70_000):
        assert len(encode(Envelope(seq, ack, part, signature))) <= 70_000


def test_the_size_of_a_message_in_parts_counts_once_it_is_whole() -> None:
    (*_, last) = cut(bytes(1000), 300)
    assert message_bytes(Envelope(4, 0, last), 90) == 1000
    assert message_bytes(Envelope(4, 0, Ack()), 90) == 90


# ── test message ──────────────────────────────────────────────────────────────────────────────
# Messages are arrays that begin with their class name, and may grow at the end.


class Place(Value, frozen=True):
    row: int


class Found(Message, frozen=True):
    place: Place
    note: str = ""


def test_a_message_is_an_array_that_begins_with_its_name() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Found(Place(3), "x"))) == ["Found", [3], "x"]


def test_a_field_with_a_default_may_be_missing() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["Found", [3]]), type=Found) == Found(Place(3))
