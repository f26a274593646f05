"""Frames between a pool and its workers."""

import asyncio
import io

import msgspec
import pytest

from asyncrl.config.sections.reward import Reward
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.pipe import FromWorker, Judge, Judged, Load, encode, hung_message, read, receive


def heard(*chunks: bytes) -> list[FromWorker | None]:
    """Messages the pool reads from these bytes, up to the first None."""

    async def listen() -> list[FromWorker | None]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        messages = [await receive(reader)]
        while messages[-1] is not None:
            messages.append(await receive(reader))
        return messages

    return asyncio.run(listen())


def test_a_worker_reads_frames_until_the_stream_ends() -> None:
    encoded = msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion="#### 4", answer="4")))
    load = Load(Reward(function="gsm8k", options={"method": "strict"}, timeout_s=0.3))
    stream = io.BytesIO(encode(load) + encode(Judge(0, [encoded, encoded])))

    assert read(stream) == load
    request = read(stream)
    assert isinstance(request, Judge)
    assert [msgspec.msgpack.decode(raw, type=VerifierInput).answer for raw in request.inputs] == ["4", "4"]
    assert read(stream) is None


def test_the_pool_reads_frames_in_order() -> None:
    first, second = Judged(1, Verdict(0.5, {"correct": 0.0})), Judged(0, None, "the function raised", retryable=True)

    assert heard(encode(first) + encode(second)) == [first, second, None]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x01\x00\x01\x00" + bytes(1 << 17),
        b"\xff\xff\xff\x7f",
        b"",
        b"\x05\x00",
        b"\x05\x00\x00\x00ab",
        b"\x02\x00\x00\x00hi",
        b"\x02\x00\x00\x00\xa1\xff",
    ],
)
def test_half_a_frame_or_nonsense_means_the_worker_is_gone(damaged: bytes) -> None:
    assert heard(damaged) == [None]


def test_a_hang_is_told_with_its_limit() -> None:
    assert "within 0.3 s" in hung_message(0.3)
