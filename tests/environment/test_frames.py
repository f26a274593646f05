"""Frames as the pool reads them from a process that it does not trust."""

import asyncio

import pytest

from asyncrl.environment.frames import FrameReader, FromWorker, NotAFrame, encode
from asyncrl.environment.worker import pipe


def read(*chunks: bytes) -> list[list[FromWorker]]:
    async def read_all() -> list[list[FromWorker]]:
        stream = asyncio.StreamReader()
        reader = FrameReader(stream)
        found = []
        for chunk in chunks:
            stream.feed_data(chunk)
            found.append(await reader.read())
        stream.feed_eof()
        with pytest.raises(EOFError):
            await reader.read()
        return found

    return asyncio.run(read_all())


def test_frames_of_a_worker_are_read_as_they_come() -> None:
    sent = pipe.begun(3) + pipe.encode({"n": 3, "answer": {"messages": []}}) + pipe.encode({"n": 4, "error": "no"})

    first, second = read(sent[:-3], sent[-3:])

    assert [(frame.n, frame.begun, bytes(frame.answer)) for frame in first] == [
        (3, True, b""),
        (3, False, b'{"messages":[]}'),
    ]
    assert [(frame.n, frame.error) for frame in second] == [(4, "no")]


def test_frames_to_a_worker_are_read_there() -> None:
    frames = pipe.Frames()

    assert frames.feed(encode({"n": 1}) + encode({"n": 2, "text": "ä"})) == [{"n": 1}, {"n": 2, "text": "ä"}]


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\x04\x00\x00\x00oops", b'\x0d\x00\x00\x00{"n":"three"}'])
def test_bytes_that_are_no_frame_are_told(garbage: bytes) -> None:
    with pytest.raises(NotAFrame):
        read(garbage)
