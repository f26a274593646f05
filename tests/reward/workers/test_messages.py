"""Messages between a pool and its workers."""

import io

import msgspec

from asyncrl.config.sections.reward import Reward
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.messages import Judge, Judged, Loaded, WorkerLoad, decode, encode, hung_message, read
from asyncrl.workers.frames import Frames


def test_a_worker_reads_messages_until_the_stream_ends() -> None:
    encoded = msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion="#### 4", answer="4")))
    load = WorkerLoad(Reward(function="gsm8k", options={"method": "strict"}, timeout_s=0.3))
    stream = io.BytesIO(encode(load) + encode(Judge(0, [encoded, encoded])))

    assert read(stream) == load
    request = read(stream)
    assert isinstance(request, Judge)
    assert [msgspec.msgpack.decode(raw, type=VerifierInput).answer for raw in request.inputs] == ["4", "4"]
    assert read(stream) is None


def test_the_pool_reads_what_a_worker_wrote() -> None:
    sent = [
        Loaded(concurrent=True),
        Judged(1, [Verdict(0.5, {"correct": 0.0})]),
        Judged(0, [], "the function raised", retryable=True),
    ]
    frames = Frames()
    frames.feed(b"".join(map(encode, sent)))

    assert [decode(frames.take() or b"") for _ in sent] == sent
    assert frames.take() is None


def test_a_hang_is_told_with_its_limit() -> None:
    assert "within 0.3 s" in hung_message(0.3)
