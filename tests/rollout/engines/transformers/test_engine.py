import asyncio
import copy
import json
import subprocess
import sys
import threading
from collections.abc import Coroutine
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from asyncrl.engine import Completion, Engine, EngineLoad, Request
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import Prompt, Sampling, Span
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.testing.engine import CHECKS, Check, Subject
from asyncrl.weights.contents.names import checkpoint_tensors
from tests.rollout.engines.reference import reference_logprobs
from tests.weights.groups.fake_npu import installed_at

ROOT = Path(__file__).parents[4]

FAMILIES = pytest.mark.parametrize("family", ["qwen3", "llama"])
"""One family with its own forward pass, one that uses the model's."""


@pytest.fixture
def make_engine(make_model, tokenizer):
    def make(family: str = "qwen3", seed: int = 0, **options: Any) -> TransformersEngine:
        return TransformersEngine(
            make_model(family, seed), tokenizer, **{"slots": 4, "max_tokens_per_slot": 64} | options
        )

    return make


def request(*prompt_ids: int, seed: int | None = 0, max_tokens: int = 12, **sampling: Any) -> Request:
    return Request(
        prompt_ids=list(prompt_ids or (5, 9, 7)), sampling=Sampling(max_tokens=max_tokens, **sampling), seed=seed
    )


def run(engine: Engine, *requests: Request) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(all_at_once())


async def after_tokens(engine: TransformersEngine, num_tokens: int) -> None:
    """Let the engine decode ``num_tokens`` tokens. The loop has turns after each step, so none is missed."""
    steps = engine._table._steps + num_tokens
    while engine._table._steps < steps:
        await asyncio.sleep(0)


@FAMILIES
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_that_hosts_test_their_engines_by(make_engine, make_model, family: str, check: Check):
    model = make_model(family)

    def score(prompt_ids, ids):
        asked = Request(prompt_ids=list(prompt_ids), sampling=Sampling(max_tokens=24), seed=0)
        return reference_logprobs(model, asked, list(ids))

    subject = Subject(
        make=lambda: make_engine(family, slots=3),
        prompt=Prompt(text="w5 w9 w7"),
        weights=lambda: dict(checkpoint_tensors(model)),
        score=score,
        quiet_s=0.001,
    )
    asyncio.run(check(subject))


# ── what is sampled ─────────────────────────────────────────────────────────────────────────


@FAMILIES
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7},
        {"top_p": 0.8},
        {"top_k": 5},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20},
    ],
    ids=str,
)
def test_behavior_logprobs_are_those_of_the_distribution_sampled_from(make_engine, make_model, family, sampling):
    requests = [request(*range(3, 3 + n), seed=n, **sampling) for n in (1, 4, 9)]
    model = make_model(family)

    for req, done in zip(requests, run(make_engine(family), *requests), strict=True):
        expected = reference_logprobs(model, req, done.completion_ids)
        assert done.behavior_logprobs == pytest.approx(expected, abs=1e-4)


@FAMILIES
def test_ids_beyond_the_tokenizer_are_never_sampled(make_model, family):
    known = 40
    words = Tokenizer(models.WordLevel({"<eos>": 0} | {f"w{i}": i for i in range(1, known)}, unk_token="w3"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    model = make_model(family)
    engine = TransformersEngine(model, tokenizer, slots=4, max_tokens_per_slot=64)
    requests = [request(seed=seed, max_tokens=60, temperature=20.0) for seed in range(8)]

    for req, done in zip(requests, run(engine, *requests), strict=True):
        assert max(done.completion_ids) < known == engine.token_ids.vocab_size
        ids = torch.tensor([req.prompt_ids + done.completion_ids])
        logits = model(input_ids=ids).logits[0, len(req.prompt_ids) - 1 : -1, :known] / 20
        expected = logits.log_softmax(-1).gather(1, ids[0, len(req.prompt_ids) :, None])[:, 0]
        assert done.behavior_logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@FAMILIES
def test_temperature_zero_is_the_models_own_greedy_and_reports_unscaled_logprobs(make_engine, make_model, family):
    model, req = make_model(family), request(5, 9, 7, temperature=0.0, max_tokens=20)
    with torch.inference_mode():
        expected = model.generate(torch.tensor([req.prompt_ids]), max_new_tokens=20, do_sample=False)[0, 3:].tolist()

    [done] = run(make_engine(family), req)

    assert done.completion_ids == expected
    assert done.behavior_logprobs == pytest.approx(reference_logprobs(model, req, expected), abs=1e-4)


def test_a_seeded_request_has_the_same_tokens_alone_and_in_any_batch(make_engine):
    mine = request(5, 9, 7, seed=11, max_tokens=20)
    company = [
        request(4, seed=1, temperature=0.7),
        request(8, 8, 8, 8, seed=2, top_p=0.5),
        request(5, 9, 7, seed=3, temperature=0.0),
    ]
    [alone] = run(make_engine(), mine)

    together = run(make_engine(), *company, mine)[-1]

    assert together.completion_ids == alone.completion_ids
    assert together.behavior_logprobs == pytest.approx(alone.behavior_logprobs, abs=1e-5)


def test_members_of_a_group_differ_by_their_seed_alone(make_engine):
    group = [request(5, 9, 7, seed=seed) for seed in (0, 1, 2, 0)]

    ids = [done.completion_ids for done in run(make_engine(), *group)]

    assert ids[0] == ids[3]
    assert len(set(map(tuple, ids))) == 3


def test_requests_without_a_seed_differ_within_an_engine_and_between_engines(make_engine):
    requests = [request(seed=None, max_tokens=20) for _ in range(4)]

    ids = [done.completion_ids for engine in (make_engine(), make_engine()) for done in run(engine, *requests)]

    assert len(set(map(tuple, ids))) == 8


def test_a_seeded_request_has_its_tokens_beside_others_without_a_seed(make_engine):
    [alone], mixed = run(make_engine(), request(seed=3)), run(make_engine(), request(seed=None), request(seed=3))

    assert mixed[-1].completion_ids == alone.completion_ids


# ── how a completion ends ───────────────────────────────────────────────────────────────────


def test_a_completion_cut_at_max_tokens_says_length(make_engine):
    [done] = run(make_engine(), request(max_tokens=3, temperature=0.0))

    assert (len(done.completion_ids), done.finish_reason) == (3, "length")


def test_the_end_of_sequence_token_ends_a_completion_and_is_kept(make_engine):
    requests = [request(seed=seed, max_tokens=60) for seed in range(8)]

    stopped = [done for done in run(make_engine(), *requests) if done.finish_reason == "stop"]

    assert stopped
    assert all(done.completion_ids.index(0) == len(done.completion_ids) - 1 for done in stopped)


def test_a_stop_string_ends_a_completion_and_is_kept(make_engine):
    engine = make_engine()
    [free] = run(engine, request(seed=3, max_tokens=20))
    text = engine.decode(free.completion_ids[4:6])  # two words, so that it spans tokens

    [done] = run(make_engine(), request(seed=3, max_tokens=20, stop=["never", text]))

    assert done.finish_reason == "stop"
    assert engine.decode(done.completion_ids).endswith(text)
    assert done.completion_ids == free.completion_ids[: len(done.completion_ids)]


def test_a_stop_string_that_is_a_special_token_is_found(make_model, tokenizer):
    marked = copy.deepcopy(tokenizer)
    marked.add_special_tokens({"additional_special_tokens": ["w60"]})
    assert marked.decode([60], skip_special_tokens=True) == ""

    def completions(**sampling: Any) -> list[Completion]:
        engine = TransformersEngine(make_model("qwen3", 0), marked, slots=8, max_tokens_per_slot=64)
        found = run(engine, *(request(seed=seed, max_tokens=60, **sampling) for seed in range(24)))
        return [done for done in found if 60 in done.completion_ids]

    written, stopped = completions(), completions(stop=["w60"])
    assert len(stopped) == len(written) > 0
    assert all(done.completion_ids.index(60) == len(done.completion_ids) - 1 for done in stopped)
    assert {done.finish_reason for done in stopped} == {"stop"}


def test_a_stop_string_in_the_prompt_does_not_count(make_engine):
    req = request(60, 61, temperature=0.0, max_tokens=4, stop=["w60 w61"])

    [done] = run(make_engine(), req)

    assert "w60 w61" not in make_engine().decode(done.completion_ids)
    assert done.finish_reason == "length"


# ── slots ───────────────────────────────────────────────────────────────────────────────────


@FAMILIES
def test_more_requests_than_slots_all_finish_as_they_would_alone(make_engine, family):
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"temperature": 0.5, "top_k": 9}, {"top_p": 0.6}]
    requests = [request(*range(3, 4 + n % 5), seed=n, max_tokens=3 + n % 7, **kinds[n % 4]) for n in range(17)]

    crowded = run(make_engine(family, slots=3), *requests)

    alone = [run(make_engine(family, slots=1), req)[0] for req in requests]
    assert [done.completion_ids for done in crowded] == [done.completion_ids for done in alone]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_p": 0.3}, {"top_k": 2}], ids=str)
def test_a_completion_that_moves_to_another_slot_takes_its_sampling_along(make_engine, sampling):
    """The first two end early, and the last one moves into the slot of the first."""
    brief, last = request(4, seed=1, max_tokens=2), request(5, 9, 7, seed=2, max_tokens=20, **sampling)
    [alone] = run(make_engine(), last)

    moved = run(make_engine(), brief, brief, last)[-1]

    assert moved.completion_ids == alone.completion_ids


def test_a_cancelled_request_frees_its_slot(make_engine):
    async def scenario() -> tuple[str, Completion]:
        engine = make_engine(slots=1)
        task = asyncio.create_task(engine.generate(request(max_tokens=60, temperature=0.0)))
        await after_tokens(engine, 2)
        task.cancel()
        await asyncio.wait([task])
        return repr(engine), await engine.generate(request(4, seed=5))

    state, done = asyncio.run(scenario())

    assert state == "<TransformersEngine open running=0 waiting=0>"
    assert done.completion_ids == run(make_engine(), request(4, seed=5))[0].completion_ids


def test_a_cancelled_request_that_waited_leaves_the_queue(make_engine):
    async def scenario() -> str:
        engine = make_engine(slots=1)
        first = asyncio.create_task(engine.generate(request(max_tokens=40, temperature=0.0)))
        second = asyncio.create_task(engine.generate(request()))
        await after_tokens(engine, 2)
        second.cancel()
        await asyncio.wait([second])
        state = repr(engine)
        await first
        return state

    assert asyncio.run(scenario()) == "<TransformersEngine open running=1 waiting=0>"


# ── resuming ────────────────────────────────────────────────────────────────────────────────


async def written_after(engine: TransformersEngine, num_tokens: int, *requests: Request) -> list[Completion]:
    """Unfinished completions after ``num_tokens`` steps; the requests are then cancelled."""
    tasks = [asyncio.create_task(engine.generate(req)) for req in requests]
    await after_tokens(engine, num_tokens)
    written = [engine.written(req) for req in requests]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [completion for completion in written if completion]


def resuming(req: Request, prefix: Completion) -> Request:
    return replace(req, resume_from=prefix)


@FAMILIES
def test_a_resumed_completion_equals_the_uninterrupted_one(make_engine, family):
    requests = [request(5, 9, 7, seed=n, max_tokens=20) for n in range(3)] + [request(*range(3, 12), max_tokens=30)]
    undisturbed = run(make_engine(family), *requests)
    prefixes = asyncio.run(written_after(make_engine(family), 4, *requests))
    assert all(completion.finish_reason == "unfinished" for completion in prefixes)
    assert {len(completion.completion_ids) for completion in prefixes} == {4}

    resumed = run(make_engine(family), *map(resuming, requests, prefixes))

    for before, done, expected in zip(prefixes, resumed, undisturbed, strict=True):
        assert done.completion_ids == expected.completion_ids
        assert done.finish_reason == expected.finish_reason
        assert done.behavior_logprobs[:4] == before.behavior_logprobs, "they are not computed again"
        assert done.behavior_logprobs == pytest.approx(expected.behavior_logprobs, abs=1e-4)


def test_resumed_tokens_keep_their_versions(make_engine):
    req = request(5, 9, 7, seed=1, max_tokens=12)
    [prefix] = asyncio.run(written_after(make_engine(policy_version=3), 4, req))
    [once] = asyncio.run(written_after(make_engine(policy_version=3), 2, resuming(req, prefix)))

    [done] = run(make_engine(policy_version=5), resuming(req, once))

    num_tokens = len(done.completion_ids)
    assert once.spans == [Span(3, 0, 6)], "one span as long as the version is one"
    assert done.spans == [Span(3, 0, 6), Span(5, 6, num_tokens)]
    assert done.generate_s > once.generate_s > prefix.generate_s > 0


def test_a_request_that_waits_for_a_slot_has_its_resumed_tokens(make_engine):
    async def main() -> tuple[Completion | None, Completion | None, Completion]:
        engine = make_engine(slots=1)
        first, waiting = request(seed=1), request(seed=2)
        [prefix] = await written_after(engine, 3, waiting)
        again = resuming(waiting, prefix)
        tasks = [asyncio.create_task(engine.generate(req)) for req in (first, again)]
        await after_tokens(engine, 1)
        seen = engine.written(again), engine.written(waiting), prefix
        await asyncio.gather(*tasks)
        return seen

    seen, unknown, prefix = asyncio.run(main())
    assert seen == prefix
    assert unknown is None


def test_a_full_completion_cannot_be_resumed(make_engine):
    req = request(max_tokens=4)
    [prefix] = asyncio.run(written_after(make_engine(), 3, req))
    full = replace(prefix, completion_ids=[4] * 4, behavior_logprobs=[-1.0] * 4, spans=[Span(0, 0, 4)])
    with pytest.raises(EngineError, match="has 4 tokens, but max_tokens is 4"):
        run(make_engine(), resuming(req, full))


# ── sampling masks ──────────────────────────────────────────────────────────────────────────

CUT = {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "replay_mask": True}


def masks_of(done: Completion) -> list[list[int]]:
    ends = [0, *accumulate(done.mask_counts)]
    return [done.mask_ids[start:end] for start, end in pairwise(ends)]


def renormalised(model: PreTrainedModel, req: Request, done: Completion) -> list[float]:
    """Log-probs of a model's own forward pass, over the recorded masks."""
    with torch.inference_mode():
        logits = model(torch.tensor([req.prompt_ids + done.completion_ids])).logits[0, len(req.prompt_ids) - 1 : -1]
    rows = zip(logits / req.sampling.temperature, done.completion_ids, masks_of(done), strict=True)
    return [float(row[mask].log_softmax(-1)[mask.index(token)]) for row, token, mask in rows]


@FAMILIES
def test_over_the_recorded_masks_the_model_has_the_recorded_logprobs(make_engine, make_model, family):
    """Some end early, others move to their slots, and some have no filter or no record."""
    kinds: list[dict[str, Any]] = [CUT, {}, CUT | {"replay_mask": False}, CUT | {"top_k": 3}]
    requests = [request(*range(3, 4 + n % 5), seed=n, max_tokens=3 + n % 11, **kinds[n % 4]) for n in range(17)]
    model = make_model(family)

    for req, done in zip(requests, run(make_engine(family, slots=3), *requests), strict=True):
        if not req.sampling.replay_mask:
            assert (done.mask_counts, done.mask_ids) == ([], [])
            continue
        assert len(done.mask_counts) == len(done.completion_ids)
        assert max(done.mask_counts) <= req.sampling.top_k
        assert all(mask == sorted(set(mask)) for mask in masks_of(done))
        assert done.behavior_logprobs == pytest.approx(renormalised(model, req, done), abs=1e-5)


def test_a_resumed_completion_has_the_masks_of_an_uninterrupted_one(make_engine):
    requests = [request(5, 9, 7, seed=n, max_tokens=20, **CUT) for n in range(3)]
    undisturbed = run(make_engine(), *requests)
    prefixes = asyncio.run(written_after(make_engine(), 4, *requests))
    assert [len(prefix.mask_counts) for prefix in prefixes] == [4, 4, 4]

    for done, expected in zip(run(make_engine(), *map(resuming, requests, prefixes)), undisturbed, strict=True):
        assert masks_of(done) == masks_of(expected)


def test_masks_of_the_whole_vocabulary_are_refused(make_engine):
    with pytest.raises(EngineError, match="records the ids that top_p and top_k leave, but they leave all"):
        run(make_engine(), request(replay_mask=True))


# ── new weights ─────────────────────────────────────────────────────────────────────────────


def swapped_at(engine: TransformersEngine, new: PreTrainedModel, when: int, *requests: Request) -> list[Completion]:
    """Sample, and swap in the weights of model ``new`` as version 7 after ``when`` tokens."""

    async def scenario() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(req)) for req in requests]
        await after_tokens(engine, when)
        await engine.pause()
        await engine.swap(7, dict(checkpoint_tensors(new)))
        await engine.resume()
        return await asyncio.gather(*tasks)

    return asyncio.run(scenario())


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_after_a_swap_the_engine_decodes_as_the_new_model(make_engine, make_model, family):
    engine, new, req = make_engine(family), make_model(family, seed=1), request(temperature=0.0, max_tokens=20)

    async def swap() -> None:
        await engine.pause()
        await engine.swap(7, dict(checkpoint_tensors(new)))
        await engine.resume()

    asyncio.run(swap())

    [done], [fresh] = run(engine, req), run(make_engine(family, seed=1), req)
    assert done.completion_ids == fresh.completion_ids
    assert done.spans == [Span(7, 0, len(done.completion_ids))]


@FAMILIES
@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_tokens_written_before_a_swap_keep_their_version_and_logprob(make_engine, make_model, family, kv):
    requests = [request(*range(3, 3 + n), seed=n, max_tokens=30) for n in (1, 3, 3, 8)]
    undisturbed = run(make_engine(family), *requests)

    results = swapped_at(make_engine(family, kv=kv), make_model(family, seed=1), 6, *requests)

    assert any(len(done.spans) == 2 for done in results)
    for done, before in zip(results, undisturbed, strict=True):
        old = done.spans[0]
        assert (old.policy_version, old.start) == (0, 0)
        assert done.completion_ids[: old.end] == before.completion_ids[: old.end]
        assert done.behavior_logprobs[: old.end] == before.behavior_logprobs[: old.end]
        assert done.spans[-1].end == len(done.completion_ids)
        assert all(a.end == b.start for a, b in pairwise(done.spans))


@FAMILIES
def test_with_recompute_tokens_after_a_swap_are_the_new_models_given_the_whole_prefix(make_engine, make_model, family):
    requests = [request(*range(3, 3 + n), seed=n, max_tokens=30) for n in (1, 3, 3, 8)]
    old, new = make_model(family), make_model(family, seed=1)

    results = swapped_at(make_engine(family, kv="recompute"), new, 6, *requests)

    for req, done in zip(requests, results, strict=True):
        cut = done.spans[0].end
        before = reference_logprobs(old, req, done.completion_ids)[:cut]
        after = reference_logprobs(new, req, done.completion_ids)[cut:]
        assert done.behavior_logprobs == pytest.approx(before + after, abs=1e-4)


def test_with_keep_a_request_that_comes_after_a_swap_shares_no_old_prompt(make_engine, make_model):
    async def scenario() -> Completion:
        engine, new = make_engine(kv="keep"), make_model(seed=1)
        old = asyncio.create_task(engine.generate(request(max_tokens=40, temperature=0.0)))
        await after_tokens(engine, 3)
        await engine.pause()
        await engine.swap(7, dict(checkpoint_tensors(new)))
        await engine.resume()
        done = await engine.generate(request(seed=4))
        await old
        return done

    done, req = asyncio.run(scenario()), request(seed=4)

    expected = reference_logprobs(make_model(seed=1), req, done.completion_ids)
    assert done.behavior_logprobs == pytest.approx(expected, abs=1e-4)


def test_no_token_is_written_while_paused(make_engine):
    async def scenario() -> tuple[bool, Completion]:
        engine = make_engine()
        task = asyncio.create_task(engine.generate(request(max_tokens=5, temperature=0.0)))
        await engine.pause()
        num_computed = engine.num_computed
        for _ in range(100):
            await asyncio.sleep(0)
        stood_still = not task.done() and engine.num_computed == num_computed
        await engine.resume()
        return stood_still, await task

    stood_still, done = asyncio.run(scenario())

    assert stood_still
    assert len(done.completion_ids) == 5


def test_weights_that_do_not_fit_change_nothing(make_engine, make_model):
    engine, req = make_engine(), request(temperature=0.0)
    [before] = run(engine, req)
    weights = dict(checkpoint_tensors(make_model(seed=1)))
    weights["model.norm.weight"] = torch.ones(3)

    async def swap() -> None:
        await engine.pause()
        with pytest.raises(EngineError, match=r"'model.norm.weight' has shape \(3,\), but the model's has \(32,\)"):
            await engine.swap(7, weights)
        await engine.resume()

    asyncio.run(swap())

    assert run(engine, req)[0].completion_ids == before.completion_ids
    assert engine.policy_version == 0


def test_swap_needs_a_pause(make_engine):
    with pytest.raises(EngineError, match="call pause"):
        asyncio.run(make_engine().swap(1, {}))


# ── errors and the end ──────────────────────────────────────────────────────────────────────


def failure(coroutine: Coroutine[Any, Any, Any]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        asyncio.run(coroutine)
    return caught.value


def test_a_prompt_that_does_not_fit_is_refused_for_good(make_engine):
    error = failure(make_engine().generate(request(*[5] * 60, max_tokens=12)))

    assert not error.retryable
    assert "60 tokens and max_tokens=12 do not fit a slot of 64" in str(error)


def test_broken_weights_are_an_error_and_not_a_completion(make_engine):
    engine = make_engine()

    async def scenario() -> None:
        await engine.pause()
        await engine.swap(3, {spec.name: torch.full(spec.shape, torch.nan) for spec in engine.specs()})
        await engine.resume()
        await engine.generate(request())

    error = failure(scenario())

    assert not error.retryable
    assert "policy version 3 gave log-probabilities that are not finite" in str(error)


def test_closing_fails_running_waiting_and_new_requests(make_engine):
    async def scenario() -> list[Any]:
        engine = make_engine(slots=1)
        tasks = [asyncio.create_task(engine.generate(request(max_tokens=40, temperature=0.0))) for _ in range(2)]
        await after_tokens(engine, 2)
        await engine.aclose()
        await engine.aclose()
        return await asyncio.gather(*tasks, engine.generate(request()), return_exceptions=True)

    errors = asyncio.run(scenario())

    assert [(type(error), str(error)) for error in errors] == [(EngineError, "the engine was closed")] * 3


def test_a_failure_of_decoding_reaches_every_caller_and_the_engine_goes_on(make_engine, monkeypatch):
    engine, req = make_engine(), request(temperature=0.0)

    async def scenario() -> tuple[list[Any], Completion]:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "log_softmax", lambda *_: 1 / 0)
            failed = await asyncio.gather(*[engine.generate(req) for _ in range(6)], return_exceptions=True)
        return failed, await engine.generate(req)

    failed, done = asyncio.run(scenario())

    assert all(isinstance(error, EngineError) and error.retryable for error in failed)
    assert "decoding failed: ZeroDivisionError" in str(failed[0])
    assert done.completion_ids == run(make_engine(), req)[0].completion_ids


class Gate:
    """A forward pass that computes until ``may_end`` is set."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.has_begun.set()
        assert self.may_end.wait(60)


def test_while_a_step_computes_the_loop_turns_and_a_pause_waits_for_the_step(make_model, tokenizer):
    """However long a forward pass takes, heartbeats and messages are served meanwhile."""
    model = make_model("llama")
    engine = TransformersEngine(model, tokenizer, slots=4, max_tokens_per_slot=64)
    gate = Gate()

    async def scenario() -> Completion:
        asked, other = request(max_tokens=5, temperature=0.0), request(9, 9)
        hook = model.register_forward_pre_hook(gate)
        task = asyncio.create_task(engine.generate(asked))
        assert await asyncio.to_thread(gate.has_begun.wait, 60)

        pausing = asyncio.create_task(engine.pause())
        another = asyncio.create_task(engine.generate(other))
        for _ in range(100):
            await asyncio.sleep(0)
        assert (engine.written(asked), engine.written(other)) == (None, None)
        assert engine.measure() == EngineLoad(0.25, 0, num_running=1, num_waiting=1)
        another.cancel()
        await asyncio.wait([another])
        assert not pausing.done()

        hook.remove()
        gate.may_end.set()
        await pausing
        written = engine.written(asked)
        assert written
        assert len(written.completion_ids) == 1
        await engine.resume()
        return await task

    assert len(asyncio.run(scenario()).completion_ids) == 5


def test_a_caller_that_is_cancelled_amid_a_step_leaves_its_slot_to_others(make_engine, make_model, tokenizer):
    model = make_model("llama")
    engine = TransformersEngine(model, tokenizer, slots=1, max_tokens_per_slot=64)
    gate = Gate()

    async def scenario() -> Completion:
        hook = model.register_forward_pre_hook(gate)
        task = asyncio.create_task(engine.generate(request(max_tokens=40)))
        assert await asyncio.to_thread(gate.has_begun.wait, 60)
        task.cancel()
        await asyncio.wait([task])
        hook.remove()
        gate.may_end.set()
        return await engine.generate(request(max_tokens=5, temperature=0.0))

    assert (
        asyncio.run(scenario()).completion_ids
        == run(make_engine("llama"), request(max_tokens=5, temperature=0.0))[0].completion_ids
    )


def test_an_idle_engine_leaves_no_task_behind(make_engine):
    async def scenario() -> int:
        await make_engine().generate(request())
        for _ in range(100):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(scenario()) == 1


# ── loading ─────────────────────────────────────────────────────────────────────────────────


def test_a_model_directory_is_loaded_as_it_was_saved(make_engine, make_model, tokenizer, tmp_path):
    make_model(seed=2).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    engine = TransformersEngine.load(str(tmp_path), slots=2, max_tokens_per_slot=64)

    assert engine.encode(Prompt(text="w5 w9")) == [5, 9]
    assert run(engine, request())[0].completion_ids == run(make_engine(seed=2), request())[0].completion_ids


def test_overrides_change_what_the_engine_computes(make_model, tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    sizes: Any = {"slots": 2, "max_tokens_per_slot": 300}
    with pytest.raises(ConfigError, match="the model knows 256 positions"):
        TransformersEngine.load(str(tmp_path), **sizes)
    overrides = {"max_position_embeddings": 512}
    plain, other = (
        TransformersEngine.load(str(tmp_path), **sizes, overrides=overrides | more)
        for more in ({}, {"rope_parameters": {"rope_theta": 5.0}})
    )
    of_plain, of_other = (run(engine, request())[0].behavior_logprobs for engine in (plain, other))
    assert list(of_plain) != list(of_other)


def test_a_directory_without_a_model_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path .* is not a model directory"):
        TransformersEngine.load(str(tmp_path), slots=2, max_tokens_per_slot=64)


def test_a_tokenizer_of_another_model_is_a_config_error(make_model, tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(500)}, unk_token="w3"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the tokenizer has token ids up to \d+, but the model knows 0 to"):
        TransformersEngine.load(str(tmp_path), slots=2, max_tokens_per_slot=64)


@pytest.mark.parametrize("settings", [{"model_type": "unheard"}, {"hidden_act": "unheard"}, {"hidden_size": 3}])
def test_a_config_of_another_model_is_a_config_error(make_model, tokenizer, tmp_path, settings):
    make_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(ConfigError, match=r"^model\.path=.*(: no model can be made | cannot be loaded: )"):
        TransformersEngine.load(str(tmp_path), slots=2, max_tokens_per_slot=64)


def test_specs_name_tied_parameters_once(make_engine, make_model):
    names = [spec.name for spec in make_engine().specs()]

    assert names == [name for name, _ in make_model().named_parameters()]
    assert "lm_head.weight" not in names


def test_a_request_of_higher_priority_waits_before_those_of_lower(make_engine):
    async def scenario() -> list[str]:
        engine, ended = make_engine(slots=1), list[str]()

        async def generate(name: str, priority: int) -> None:
            await engine.generate(replace(request(temperature=0.0), priority=priority))
            ended.append(name)

        order = [("rollout 1", 1), ("rollout 2", 1), ("user 1", 0), ("user 2", 0)]
        await asyncio.gather(*(generate(name, priority) for name, priority in order))
        return ended

    assert asyncio.run(scenario()) == ["user 1", "user 2", "rollout 1", "rollout 2"]


# ── devices ─────────────────────────────────────────────────────────────────────────────────


ON_DEVICE = [("qwen3", "float32"), ("qwen3", "bfloat16"), ("llama", "float32")]


@pytest.fixture(scope="module")
def on_devices(make_model, tokenizer, tmp_path_factory) -> dict[tuple[str, str], dict[str, Any]]:
    """What one process found for each family and dtype: importing torch takes longer than any of them."""
    folder = tmp_path_factory.mktemp("npu")
    for family, _ in ON_DEVICE:
        make_model(family).save_pretrained(folder / family)
        tokenizer.save_pretrained(folder / family)
    told = [part for family, dtype in ON_DEVICE for part in (str(folder / family), dtype)]
    command = [sys.executable, "-m", "tests.rollout.engines.transformers.npu_process", *told]
    environment = installed_at(folder)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(ON_DEVICE, json.loads(done.stdout), strict=True))


@pytest.mark.slow("imports torch with a fake device in a process of its own")
@pytest.mark.parametrize(("family", "dtype"), ON_DEVICE)
def test_on_a_device_of_its_own_it_decodes_the_same_and_leaves_the_hosts_thread_as_it_was(on_devices, family, dtype):
    """The device is as strict as torch's: a tensor of another device, or of another thread's, would be found."""
    facts = on_devices[family, dtype]
    assert (facts["strays"], facts["current"]) == ([], 0)
    assert max(num_spans for _, _, num_spans in facts["npu:1"]) == 2
    if dtype == "float32":  # Other kernels round bfloat16 in another way.
        for (tokens, logprobs, num_spans), expected in zip(facts["npu:1"], facts["cpu"], strict=True):
            assert (tokens, num_spans) == (expected[0], expected[2])
            assert logprobs == pytest.approx(expected[1], abs=1e-5)


def test_the_load_is_the_slots_in_use_and_the_requests_that_wait_for_one(make_engine):
    async def play() -> None:
        engine = make_engine(slots=2)
        assert engine.measure() == EngineLoad(0.0, 0, 0, 0)
        tasks = [asyncio.create_task(engine.generate(request(seed=seed, max_tokens=40))) for seed in range(3)]
        await after_tokens(engine, 1)
        assert engine.measure() == EngineLoad(kv_usage=1.0, num_preempted=0, num_running=2, num_waiting=1)
        await engine.aclose()
        await asyncio.wait(tasks)
        assert all(isinstance(task.exception(), EngineError) for task in tasks)

    asyncio.run(play())
