"""`FakeEngine` follows the `Engine` contract."""

import asyncio

import pytest
from msgspec.structs import replace

from asyncrl.engine import Request
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Image, Prompt, Sampling, Span
from asyncrl.testing import IMAGE_GRID, LOGPROB, FakeEngine


def request(seed: int = 0) -> Request:
    return Request(prompt_ids=[1], sampling=Sampling(max_tokens=8), seed=seed)


def test_tokens_carry_the_version_that_wrote_them():
    async def main():
        engine = FakeEngine()
        task = asyncio.create_task(engine.generate(request()))
        await engine.started(1)
        engine.write(1)
        engine.write(2)
        await engine.pause()
        with pytest.raises(EngineError, match="paused"):
            engine.write(1)
        await engine.swap(3, {})
        await engine.resume()
        engine.write(1)
        engine.finish(finish_reason="length")
        completion = await task
        assert completion.spans == [Span(0, 0, 3), Span(3, 3, 4)]
        assert completion.completion_ids == [0, 1, 2, 3]
        assert completion.behavior_logprobs == [LOGPROB] * 4
        assert completion.finish_reason == "length"
        assert engine.running == []

    asyncio.run(main())


def test_an_engine_with_num_tokens_completes_requests_at_once():
    async def main():
        engine = FakeEngine(num_tokens=2, policy_version=5)
        await engine.pause()
        task = asyncio.create_task(engine.generate(request()))
        await engine.started(1)
        await engine.swap(6, {})
        await engine.resume()
        assert (await task).spans == [Span(6, 0, 2)], "a paused engine writes nothing"

    asyncio.run(main())


def test_a_swap_needs_a_pause():
    async def main():
        with pytest.raises(EngineError, match="pause"):
            await FakeEngine().swap(1, {})

    asyncio.run(main())


def test_closing_fails_running_requests():
    async def main():
        engine = FakeEngine()
        task = asyncio.create_task(engine.generate(request()))
        await engine.started(1)
        await engine.aclose()
        with pytest.raises(EngineError, match="closed"):
            await task

    asyncio.run(main())


def test_cancelling_a_request_removes_it():
    async def main():
        engine = FakeEngine()
        first, second = (asyncio.create_task(engine.generate(request(seed))) for seed in (1, 2))
        await engine.started(2)
        first.cancel()
        await asyncio.wait([first])
        assert [running.request.seed for running in engine.running] == [2]
        engine.fail(EngineError("enough"))
        with pytest.raises(EngineError, match="enough"):
            await second

    asyncio.run(main())


def test_a_prompt_is_one_token_a_word():
    engine = FakeEngine()
    assert engine.encode(Prompt(text="how many now")) == [3, 4, 3]
    assert engine.encode(Prompt(chat=[{"role": "user", "content": "how many"}])) == [3, 4]
    assert engine.decode([1, 2]) == "1 2"


def test_a_picture_is_four_tokens_and_must_come_with_the_request():
    image = Image(bytes(32), 24, 16, 3)
    engine = FakeEngine(num_tokens=1)
    prompt_ids = engine.encode(Prompt(text="how <image>many<image>", images=[image, image]))
    assert prompt_ids == [3, 0, 0, 0, 0, 4, 0, 0, 0, 0]
    assert engine.encode(Prompt(text="an <image> tag")) == [2, 7, 3], "text of a prompt without pictures"
    request = Request(prompt_ids=prompt_ids, sampling=Sampling(max_tokens=8), seed=0, images=(b"red", b"blue"))
    assert asyncio.run(engine.generate(request)).grids == [IMAGE_GRID] * 2
    with pytest.raises(EngineError, match="1 pictures came with a prompt of 8 tokens for pictures"):
        asyncio.run(engine.generate(replace(request, images=(b"red",))))
