"""Messages of a pool and its workers, cut from bytes that may come in any pieces, and from anybody."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.workers.frames import HEADER_BYTES, Frames, NotAFrame, framed, read_frame

MESSAGES = st.lists(st.binary(max_size=20), max_size=6)


def cut(frames: Frames, *chunks: bytes) -> list[bytes]:
    found = []
    for chunk in chunks:
        frames.feed(chunk)
        while (message := frames.take()) is not None:
            found.append(message)
    return found


@given(MESSAGES, st.data())
def test_messages_are_cut_wherever_their_bytes_are_split(messages: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(map(framed, messages))
    places = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    chunks = [sent[start:end] for start, end in zip([0, *places], [*places, len(sent)], strict=True)]

    assert cut(Frames(), *chunks) == messages


@given(MESSAGES, st.data())
def test_a_stream_is_read_until_it_ends_within_a_frame_or_after_one(messages: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(map(framed, messages))
    stream = io.BytesIO(sent[: data.draw(st.integers(0, len(sent)))])
    found = []
    while (message := read_frame(stream)) is not None:
        found.append(message)

    assert found == messages[: len(found)]
    assert len(b"".join(map(framed, found))) <= len(stream.getvalue())
    assert len(b"".join(map(framed, messages[: len(found) + 1]))) >= len(stream.getvalue())


def test_a_length_that_is_not_allowed_is_refused_before_its_bytes_come() -> None:
    frames = Frames(max_bytes=4)

    assert cut(frames, framed(b"four")) == [b"four"]
    frames.feed((5).to_bytes(HEADER_BYTES, "little"))
    with pytest.raises(NotAFrame):
        frames.take()


def test_what_comes_before_nonsense_is_taken_first() -> None:
    frames = Frames(max_bytes=4)
    frames.feed(framed(b"good") + b"\xff\xff\xff\xff")

    assert frames.take() == b"good"
    with pytest.raises(NotAFrame):
        frames.take()
