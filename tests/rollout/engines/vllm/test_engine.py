"""vLLM as an engine, compared with the built-in engine where possible."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

pytest.importorskip("vllm")

from asyncrl.engine import Completion, EngineLoad, MultiProcessEngine, Request
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import Prompt, Sampling, Span
from asyncrl.rollout.engines import limits
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from tests.rollout.engines.reference import reference_logprobs

pytestmark = pytest.mark.slow("vLLM starts")


def request(*prompt_ids: int, seed: int | None = 0, max_tokens: int = 12, **sampling: Any) -> Request:
    return Request(
        prompt_ids=list(prompt_ids or (5, 9, 7)), sampling=Sampling(max_tokens=max_tokens, **sampling), seed=seed
    )


@pytest.fixture(scope="module")
def ours(model_of: Callable[[int], PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> TransformersEngine:
    return TransformersEngine(model_of(0), tokenizer, slots=16, max_tokens_per_slot=400)


@pytest.fixture
def generate(run: Callable[..., Any]) -> Callable[..., list[Completion]]:
    async def all_at_once(engine, requests):
        return await asyncio.gather(*map(engine.generate, requests))

    return lambda engine, *requests: run(all_at_once(engine, requests))


# ── what is sampled ─────────────────────────────────────────────────────────────────────────


def test_greedy_completions_are_those_of_the_other_engine(engine, ours, generate):
    requests = [request(*range(3, 4 + n), temperature=0.0, max_tokens=40) for n in range(12)]

    for vllm, transformers in zip(generate(engine, *requests), generate(ours, *requests), strict=True):
        assert vllm.completion_ids == transformers.completion_ids
        assert vllm.behavior_logprobs == pytest.approx(transformers.behavior_logprobs, abs=1e-4)
        assert (vllm.finish_reason, vllm.spans) == (transformers.finish_reason, transformers.spans)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 5}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}],
    ids=str,
)
def test_behavior_logprobs_are_those_of_the_distribution_sampled_from(engine, model_of, generate, sampling):
    requests = [request(*range(3, 3 + n), seed=n, max_tokens=40, **sampling) for n in (1, 4, 9)]

    for req, done in zip(requests, generate(engine, *requests), strict=True):
        expected = reference_logprobs(model_of(0), req, done.completion_ids)
        assert done.behavior_logprobs == pytest.approx(expected, abs=1e-4)


def test_ids_without_a_text_are_not_sampled_and_log_probs_are_those_of_the_rest(make_engine, model_of, generate):
    words = {f"w{i}": i for i in range(40) if i not in (7, 8)}
    engine = make_engine(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w3"))))
    requests = [request(5, 9, 7, seed=seed, max_tokens=40, temperature=2.0) for seed in range(16)]
    never = engine.token_ids.without_probability(64)
    assert never == [7, 8, *range(40, 64)]

    drawn = set()
    for req, done in zip(requests, generate(engine, *requests), strict=True):
        ids = torch.tensor([req.prompt_ids + done.completion_ids])
        logits = model_of(0)(input_ids=ids).logits[0, len(req.prompt_ids) - 1 : -1] / 2
        logits[:, never] = -torch.inf
        expected = logits.log_softmax(-1).gather(1, ids[0, len(req.prompt_ids) :, None])[:, 0]
        assert done.behavior_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        drawn |= set(done.completion_ids)
    assert not drawn.intersection(never)
    others = (set(done.completion_ids) for done in generate(make_engine(), *requests))
    assert set().union(*others).intersection(never), "an engine with a tokenizer of all ids draws them"


def test_a_seeded_request_has_the_same_tokens_alone_and_in_any_batch(engine, generate):
    mine = request(5, 9, 7, seed=11, max_tokens=40)
    company = [request(4 + n, seed=n, temperature=0.2 * n, top_p=0.5) for n in range(9)]
    [alone] = generate(engine, mine)

    together = generate(engine, *company, mine)[-1]

    assert together.completion_ids == alone.completion_ids
    assert together.behavior_logprobs == pytest.approx(alone.behavior_logprobs, abs=1e-5)


def test_members_of_a_group_differ_by_their_seed_alone(engine, generate):
    ids = [done.completion_ids for done in generate(engine, *[request(seed=seed) for seed in (0, 1, 2, 0)])]

    assert ids[0] == ids[3]
    assert len(set(map(tuple, ids))) == 3


def test_a_worker_whose_sampler_reports_raw_log_probs_serves_no_request(engine, make_engine, generate, run):
    workers = engine._adapter.call_workers
    run(workers("asyncrl_report", "raw_logprobs"))
    try:
        with pytest.raises(ConfigError, match=r"^a worker's Sampler reports 'raw_logprobs' instead of 'processed_logp"):
            generate(engine, request())
    finally:
        run(workers("asyncrl_report", "processed_logprobs"))

    assert generate(make_engine(), request())


def test_requests_without_a_seed_differ_and_leave_those_with_one_alone(engine, generate):
    [alone] = generate(engine, request(seed=3))

    *others, seeded = generate(engine, *[request(seed=None) for _ in range(4)], request(seed=3))

    assert len({tuple(done.completion_ids) for done in others}) == 4
    assert seeded.completion_ids == alone.completion_ids


def test_more_requests_than_slots_all_finish(engine, generate):
    requests = [request(3 + n % 60, seed=n, max_tokens=3 + n % 7) for n in range(50)]

    done = generate(engine, *requests)

    assert all(
        len(d.completion_ids) == r.sampling.max_tokens or d.finish_reason == "stop"
        for d, r in zip(done, requests, strict=True)
    )


# ── how a completion ends ───────────────────────────────────────────────────────────────────


def test_a_completion_cut_at_max_tokens_says_length(engine, generate):
    [done] = generate(engine, request(max_tokens=3, temperature=0.0))

    assert (len(done.completion_ids), done.finish_reason) == (3, "length")


def test_the_end_of_sequence_token_ends_a_completion_and_is_kept(engine, generate):
    done = generate(engine, *[request(seed=seed, max_tokens=200) for seed in range(8)])

    stopped = [d for d in done if d.finish_reason == "stop"]
    assert stopped
    assert all(d.completion_ids.index(0) == len(d.completion_ids) - 1 for d in stopped)
    assert all(0 not in d.completion_ids for d in done if d.finish_reason == "length")


def test_an_end_of_sequence_as_the_last_token_allowed_says_stop(engine, generate):
    done = generate(engine, *[request(seed=seed, max_tokens=200) for seed in range(8)])
    length, seed = min((len(d.completion_ids), seed) for seed, d in enumerate(done) if d.finish_reason == "stop")

    [again] = generate(engine, request(seed=seed, max_tokens=length))

    assert (again.completion_ids, again.finish_reason) == (done[seed].completion_ids, "stop")


@pytest.mark.parametrize("words", [slice(4, 5), slice(4, 6), slice(0, 1)], ids=["one", "two", "the first"])
def test_a_stop_string_ends_a_completion_where_the_other_engine_ends_it(engine, ours, generate, words):
    [free] = generate(ours, request(temperature=0.0, max_tokens=20))
    stop = ours.decode(free.completion_ids[words])
    req = request(temperature=0.0, max_tokens=20, stop=["never", stop])

    [vllm], [transformers] = generate(engine, req), generate(ours, req)

    assert vllm.finish_reason == "stop"
    assert vllm.completion_ids == transformers.completion_ids
    assert len(vllm.behavior_logprobs) == len(vllm.completion_ids)


def test_a_stop_string_in_the_prompt_does_not_count(engine, ours, generate):
    req = request(60, 61, temperature=0.0, max_tokens=4, stop=["w60 w61"])

    assert generate(engine, req)[0].completion_ids == generate(ours, req)[0].completion_ids


def test_a_stop_string_that_starts_in_resumed_tokens_ends_the_completion(engine, ours, generate):
    req = request(temperature=0.0, max_tokens=20)
    [free] = generate(ours, req)
    stopping = replace(req.sampling, stop=[ours.decode(free.completion_ids[4:6])])
    req = replace(req, sampling=stopping, resume_from=cut(free, 5))

    [vllm], [transformers] = generate(engine, req), generate(ours, req)

    assert vllm.completion_ids == transformers.completion_ids
    assert len(vllm.behavior_logprobs) == len(vllm.completion_ids) == vllm.spans[-1].end
    assert vllm.finish_reason == transformers.finish_reason == "stop"


# ── resuming ────────────────────────────────────────────────────────────────────────────────


def cut(done: Completion, num_tokens: int, policy_version: int = 0) -> Completion:
    return replace(
        done,
        completion_ids=done.completion_ids[:num_tokens],
        behavior_logprobs=done.behavior_logprobs[:num_tokens],
        spans=[Span(policy_version, 0, num_tokens)],
        finish_reason="unfinished",
    )


def test_a_request_resumes_from_an_unfinished_completion(make_engine, ours, generate):
    req = request(temperature=0.0, max_tokens=20)
    [whole] = generate(ours, req)

    [done] = generate(make_engine(policy_version=7), replace(req, resume_from=cut(whole, 8, policy_version=3)))

    assert done.completion_ids == whole.completion_ids
    assert done.behavior_logprobs == pytest.approx(whole.behavior_logprobs, abs=1e-4)
    assert done.spans == [Span(3, 0, 8), Span(7, 8, len(whole.completion_ids))]
    assert done.generate_s > whole.generate_s


def test_resumed_draws_are_a_function_of_seed_and_length(engine, generate):
    [whole] = generate(engine, request(seed=4, max_tokens=30))
    resumed = replace(request(seed=4, max_tokens=30), resume_from=cut(whole, 8))
    resumed_later = replace(resumed, resume_from=cut(whole, 9))

    first, again, later = generate(engine, resumed, resumed, resumed_later)

    assert first.completion_ids == again.completion_ids
    assert first.completion_ids[8:12] != whole.completion_ids[:4]  # the draws a request begins with are not drawn again
    assert first.completion_ids[9:13] != later.completion_ids[9:13]


# ── requests come and go ────────────────────────────────────────────────────────────────────


def test_written_tokens_are_the_beginning_of_the_completion(engine, run, has_written):
    async def scenario() -> tuple[Completion, Completion]:
        req = request(temperature=0.0, max_tokens=200)
        task = asyncio.create_task(engine.generate(req))
        return await has_written(engine, req, 5), await task

    written, done = run(scenario())

    n = len(written.completion_ids)
    assert 5 <= n <= len(done.completion_ids)
    assert written.finish_reason == "unfinished"
    assert (written.completion_ids, written.behavior_logprobs) == (done.completion_ids[:n], done.behavior_logprobs[:n])
    assert written.spans == [Span(0, 0, n)]


def test_a_request_without_new_tokens_has_its_resumed_ones(engine, ours, generate, run):
    [whole] = generate(ours, request(temperature=0.0))

    async def scenario() -> list[Completion | None]:
        await engine.pause()
        begun, fresh = replace(request(), resume_from=cut(whole, 4)), request()
        tasks = [asyncio.create_task(engine.generate(req)) for req in (begun, fresh)]
        await asyncio.sleep(0)
        seen = [engine.written(begun), engine.written(fresh), engine.written(request())]
        await engine.resume()
        await asyncio.gather(*tasks)
        return seen

    assert run(scenario()) == [cut(whole, 4), None, None]


def test_a_cancelled_request_frees_its_slot(engine, run, has_written):
    async def scenario() -> tuple[int, Completion]:
        running = [request(3 + n, temperature=0.0, max_tokens=240) for n in range(16)]
        tasks = [asyncio.create_task(engine.generate(req)) for req in running]
        await has_written(engine, running[-1], 1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() or task.result() for task in tasks), "some may have ended just before"
        return engine._adapter._llm.get_num_unfinished_requests(), await engine.generate(request())

    num_unfinished, done = run(scenario())

    assert num_unfinished == 0
    assert done.completion_ids


def test_closing_an_engine_ends_its_requests_and_leaves_a_borrowed_vllm_running(make_engine, run, has_written):
    engine, other = make_engine(), make_engine()

    async def scenario() -> tuple[list[BaseException | Completion], Completion]:
        req = request(temperature=0.0, max_tokens=240)
        tasks = [asyncio.create_task(e.generate(req)) for e in (engine, other)]
        await has_written(engine, req, 3)
        await engine.aclose()
        await engine.aclose()
        results = await asyncio.gather(*tasks, engine.generate(req), return_exceptions=True)
        return results, await other.generate(request())

    (closed, goes_on, late), done = run(scenario())

    for error in (closed, late):
        assert isinstance(error, EngineError)
        assert error.retryable
        assert "closed" in str(error)
    assert isinstance(goes_on, Completion)
    assert done.completion_ids


@pytest.mark.parametrize(
    ("req", "message"),
    [
        (request(max_tokens=400), "do not fit a slot of 400 tokens"),
        (request(64), "token ids from 64 to 64, but the model knows 0 to 63"),
        (request(temperature=-1.0), "expected temperature >= 0"),
        (request(max_tokens=0), "at least 1"),
    ],
)
def test_an_invalid_request_is_refused(engine, generate, req, message):
    with pytest.raises(EngineError, match=message) as refused:
        generate(engine, req)

    assert not refused.value.retryable


# ── the rest of the interface ───────────────────────────────────────────────────────────────


def test_it_is_a_multi_process_engine(engine):
    assert isinstance(engine, MultiProcessEngine)
    assert engine.ranks == 1


def test_specs_are_those_of_the_other_engine_tied_tensors_once(engine, model_of):
    assert sorted(engine.specs()) == sorted(limits.specs(model_of(0)))


def test_prompts_are_encoded_and_completions_decoded_as_the_other_engine_does(engine, ours):
    prompts = [Prompt(text="w5 w9"), Prompt(chat=[{"role": "user", "content": "w5"}])]

    assert [engine.encode(prompt) for prompt in prompts] == [ours.encode(prompt) for prompt in prompts]
    assert engine.decode([5, 9, 0]) == ours.decode([5, 9, 0])


def test_its_load_is_that_of_the_newest_step(engine, run, has_written):
    async def play() -> list[EngineLoad | None]:
        requests = [request(seed=seed, max_tokens=100) for seed in range(40)]
        tasks = [asyncio.create_task(engine.generate(each)) for each in requests]
        await has_written(engine, requests[15], 3)
        during = engine.measure()
        await asyncio.gather(*tasks)
        return [during, engine.measure()]

    during, after = run(play())
    assert (during.num_running, during.num_preempted) == (16, 0)
    assert 0 < during.num_waiting <= 24
    assert 0 < during.kv_usage < 1
    assert during.kv_tokens == after.kv_tokens > 1000
    assert (after.num_running, after.num_waiting) == (0, 0)
