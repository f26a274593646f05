"""The worker's side of the pipe: frames cut from bytes, and sent in order."""

import asyncio
import os

import pytest

from asyncrl.environment.worker import pipe


def test_a_frame_is_cut_wherever_its_bytes_are_split() -> None:
    sent = pipe.encode({"n": 1}) + pipe.encode({"n": 2})
    for place in range(len(sent) + 1):
        frames = pipe.Frames()
        assert frames.feed(sent[:place]) + frames.feed(sent[place:]) == [{"n": 1}, {"n": 2}]


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        pipe.encode({"reward": float("nan")})


def test_what_has_begun_is_written_before_anything_else_happens() -> None:
    async def written() -> tuple[bytes, bytes]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        outbox = await pipe.open_outbox(writer)
        outbox.send(pipe.encode({"n": 1}))
        with pytest.raises(BlockingIOError):
            os.read(reader, 100)
        outbox.begin(2)
        begun = os.read(reader, 100)
        outbox.send(pipe.encode({"n": 2}))
        await asyncio.sleep(0)
        after = os.read(reader, 100)
        outbox._transport.close()
        os.close(reader)
        await asyncio.sleep(0)
        return begun, after

    assert asyncio.run(written()) == (pipe.encode({"n": 1}) + pipe.begun(2), pipe.encode({"n": 2}))
