"""New weights between two steps: versions of tokens, and use of the old cache."""

import asyncio
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

pytest.importorskip("vllm")

from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.weights.contents.layout import Bucket
from asyncrl.weights.shared import SharedTensors
from tests.rollout.engines.fetching import fetch

pytestmark = pytest.mark.slow("vLLM starts")

LONG_PROMPT = [3 + n % 50 for n in range(70)]
"""A little more than two cache blocks."""


def request(*prompt_ids: int, seed: int = 0, max_tokens: int = 12, **sampling: Any) -> Request:
    return Request(
        prompt_ids=list(prompt_ids or (5, 9, 7)), sampling=Sampling(max_tokens=max_tokens, **sampling), seed=seed
    )


def greedy(model: PreTrainedModel, prompt_ids: list[int], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt_ids])
    with torch.inference_mode():
        return model.generate(ids, max_new_tokens=num_tokens, do_sample=False)[0, len(prompt_ids) :].tolist()


def versions(done: Completion) -> list[int]:
    """[T] version of each token."""
    return [span.policy_version for span in done.spans for _ in range(span.start, span.end)]


@pytest.mark.parametrize("kv", ["recompute", "keep"])
def test_versions_agree_with_vllms_own_however_late_the_reader(make_engine, run, publish, kv):
    """The event loop is blocked repeatedly, so outputs are many steps old when weights change."""
    engine = make_engine(kv=kv)
    told: dict[str, tuple[list[int], Any]] = {}
    llm_generate = engine._adapter._llm.generate

    def listening(prompt, params, request_id, **options):
        async def outputs():
            async for output in llm_generate(prompt, params, request_id, **options):
                told[request_id] = [*output.outputs[0].token_ids], output.outputs[0].weight_versions
                yield output

        return outputs()

    async def block() -> None:
        while True:
            await asyncio.sleep(0.005)
            torch.randn(600, 600) @ torch.randn(600, 600)
            for _ in range(300_000):
                pass

    async def scenario() -> list[Completion]:
        blocking = asyncio.create_task(block())
        requests = [request(3 + n % 50, seed=n, max_tokens=200 + n) for n in range(48)]
        tasks = [asyncio.create_task(engine.generate(req)) for req in requests]
        for version in (1, 2, 3, 4, 5):
            await asyncio.sleep(0.15)
            await publish(engine, version)
        done = await asyncio.gather(*tasks)
        blocking.cancel()
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._adapter._llm, "generate", listening)
        done = run(scenario())

    accounts = {
        tuple(ids): [int(s.version) for s in spans for _ in range(s.start, s.end)] for ids, spans in told.values()
    }
    assert sum(len(d.completion_ids) for d in done) > 2000
    assert sum(len(d.spans) > 1 for d in done) > 10
    assert {version for d in done for version in versions(d)} >= {0, 1, 2, 3}
    for d in done:
        assert versions(d) == accounts[tuple(d.completion_ids)]


def test_recompute_decodes_as_if_the_new_weights_had_prefilled_all(make_engine, run, publish, model_of, has_written):
    engine = make_engine(kv="recompute")

    async def scenario() -> Completion:
        req = request(*LONG_PROMPT, temperature=0.0, max_tokens=200)
        task = asyncio.create_task(engine.generate(req))
        await has_written(engine, req, 40)
        await publish(engine, 1)
        return await task

    done = run(scenario())

    (first, second) = done.spans
    assert (first.policy_version, second.policy_version) == (0, 1)
    before = done.completion_ids[: first.end]
    assert before == greedy(model_of(0), LONG_PROMPT, first.end)
    expected = greedy(model_of(1), LONG_PROMPT + before, 200 - first.end)
    assert done.completion_ids[first.end :] == expected


@pytest.mark.parametrize("kv", ["recompute", "keep"])
def test_a_cached_prompt_is_prefilled_again_by_new_weights(make_engine, run, publish, model_of, kv):
    engine, req = make_engine(kv=kv), request(*LONG_PROMPT, temperature=0.0, max_tokens=30)

    async def scenario() -> list[Completion]:
        done = []
        for version in (1, 2, 1, 3):
            await publish(engine, version)
            done += [await engine.generate(req), await engine.generate(req)]
        return done

    expected = [greedy(model_of(version), LONG_PROMPT, 30) for version in (1, 1, 2, 2, 1, 1, 3, 3)]
    assert [done.completion_ids for done in run(scenario())] == expected


def test_under_keep_a_running_completion_goes_on_with_its_old_cache(make_engine, run, publish, model_of, has_written):
    engine = make_engine(kv="keep")

    async def scenario() -> Completion:
        req = request(*LONG_PROMPT, temperature=0.0, max_tokens=200)
        task = asyncio.create_task(engine.generate(req))
        await has_written(engine, req, 40)
        await publish(engine, 1)
        return await task

    done = run(scenario())

    end = done.spans[0].end
    assert done.completion_ids[end:] != greedy(model_of(1), LONG_PROMPT + done.completion_ids[:end], 200 - end)


@pytest.mark.parametrize("kv", ["recompute", "keep"])
def test_a_waiting_request_is_prefilled_by_the_new_weights(make_engine, run, model_of, kv):
    engine, req = make_engine(kv=kv), request(*LONG_PROMPT, temperature=0.0, max_tokens=10)

    async def scenario() -> Completion:
        await engine.generate(req)  # the cache knows the prompt
        await engine.pause()
        waiting = asyncio.create_task(engine.generate(req))
        await asyncio.sleep(0)
        await engine.swap(1, {})
        await engine.resume()
        return await waiting

    done = run(scenario())

    assert done.completion_ids == greedy(model_of(1), LONG_PROMPT, 10)
    assert done.spans == [Span(1, 0, 10)]


@pytest.mark.parametrize("kv", ["recompute", "keep"])
def test_a_group_shares_the_cache_of_its_prompt(make_engine, run, publish, kv):
    engine = make_engine(kv=kv)
    llm_generate, cached = engine._adapter._llm.generate, []

    def listening(prompt, params, request_id, **options):
        async def outputs():
            async for output in llm_generate(prompt, params, request_id, **options):
                cached.append(output.num_cached_tokens)
                yield output

        return outputs()

    async def scenario() -> None:
        await publish(engine, 1)
        for seed in range(3):
            await engine.generate(request(*LONG_PROMPT, seed=seed))
        await publish(engine, 2)
        await engine.generate(request(*LONG_PROMPT))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._adapter._llm, "generate", listening)
        run(scenario())

    assert cached == [0, 64, 64, 0]


def test_weights_that_the_node_has_fetched_are_loaded_bit_for_bit(make_engine, run, publish, model_of, tmp_path):
    engine, req = make_engine(), request(*LONG_PROMPT, temperature=0.0, max_tokens=30)

    async def seen() -> tuple[str, list[float]]:
        (digest,) = await engine._adapter._llm.collective_rpc("asyncrl_digest")
        return digest, (await engine.generate(req)).behavior_logprobs

    async def scenario() -> tuple[list[tuple[str, list[float]]], ...]:
        fetched, from_files = [], []
        async with fetch(engine, model_of(0), tmp_path, 4096) as fetching:
            for version in (1, 2, 3):
                await fetching.publish(model_of(version), version)
                fetched.append(await seen())
        for version in (1, 2, 3):
            await publish(engine, version)
            from_files.append(await seen())
        return fetched, from_files

    fetched, from_files = run(scenario())

    assert fetched == from_files
    assert len({digest for digest, _ in fetched}) == 3


def test_a_running_completion_goes_on_with_the_weights_that_were_fetched_meanwhile(
    engine, run, model_of, has_written, tmp_path
):
    async def scenario() -> Completion:
        req = request(*LONG_PROMPT, temperature=0.0, max_tokens=200)
        task = asyncio.create_task(engine.generate(req))
        async with fetch(engine, model_of(0), tmp_path, 4096) as fetching:
            await has_written(engine, req, 20)
            await fetching.publish(model_of(1), 1)
            return await task

    done = run(scenario())

    (first, second) = done.spans
    assert (first.policy_version, second.policy_version) == (0, 1)
    before = done.completion_ids[: first.end]
    assert done.completion_ids[first.end :] == greedy(model_of(1), LONG_PROMPT + before, 200 - first.end)


def test_no_token_is_decoded_while_paused_and_all_earlier_ones_have_arrived(engine, run, has_written):
    async def scenario() -> list[list[int]]:
        req = request(temperature=0.0, max_tokens=200)
        task = asyncio.create_task(engine.generate(req))
        await has_written(engine, req, 3)
        await engine.pause()
        seen = [engine.written(req).completion_ids]
        await asyncio.sleep(0.1)
        seen.append(engine.written(req).completion_ids)
        await engine.pause()  # again is no error
        await engine.resume()
        seen.append((await task).completion_ids)
        return seen

    at_pause, later, whole = run(scenario())

    assert at_pause == later == whole[: len(at_pause)]
    assert len(whole) > len(later)


def test_a_pause_without_a_swap_costs_no_cache(engine, run):
    """A node pauses like this when it hands over its running completions."""
    llm_generate, cached = engine._adapter._llm.generate, []

    def listening(prompt, params, request_id, **options):
        async def outputs():
            async for output in llm_generate(prompt, params, request_id, **options):
                cached.append(output.num_cached_tokens)
                yield output

        return outputs()

    async def scenario() -> None:
        await engine.generate(request(*LONG_PROMPT, max_tokens=1))
        await engine.pause()
        await engine.resume()
        await engine.generate(request(*LONG_PROMPT, max_tokens=1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._adapter._llm, "generate", listening)
        run(scenario())

    assert cached[1] == 64


def test_a_swap_that_is_refused_changes_nothing(engine, run, model_of):
    weights = dict(model_of(1).named_parameters())

    async def scenario() -> None:
        with pytest.raises(EngineError, match=r"call pause\(\) first"):
            await engine.swap(1, {})
        await engine.pause()
        with pytest.raises(EngineError, match="from memory that they share"):
            await engine.swap(1, weights)
        await engine.resume()

    run(scenario())
    done = run(engine.generate(request(temperature=0.0)))

    assert done.completion_ids == greedy(model_of(0), [5, 9, 7], 12)
    assert done.spans == [Span(0, 0, 12)]


def test_weights_that_the_workers_cannot_map_are_told_in_one_sentence(engine, run, model_of, monkeypatch):
    lost = SharedTensors("/proc/self/fd/1000000", Bucket((), 1))
    monkeypatch.setattr(SharedTensors, "locate", lambda _: lost)

    async def scenario() -> None:
        await engine.pause()
        try:
            await engine.swap(1, dict(model_of(1).named_parameters()))
        finally:
            await engine.resume()

    with pytest.raises(EngineError, match=r"shared weights cannot be mapped: .*No such file") as error:
        run(scenario())
    assert not error.value.retryable
    assert len(str(error.value).splitlines()) == 1


def test_an_error_of_a_worker_keeps_its_message(engine, run):
    async def scenario() -> None:
        await engine.pause()
        try:
            await engine.swap(99, {})  # a version that nobody has
        finally:
            await engine.resume()

    with pytest.raises(EngineError, match=r"v99\.safetensors") as error:
        run(scenario())
    assert not error.value.retryable
    assert run(engine.generate(request())).completion_ids
