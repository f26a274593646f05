"""The checks of an engine pass for one that keeps the contract, and each fails for one that breaks its part."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Span
from asyncrl.messages.words import FinishReason
from asyncrl.testing import engine as checks
from asyncrl.testing.engine import CHECKS, Check, NotConforming, Subject, request, require_whole, soon
from tests.testing.stepping import SteppingEngine


def subject(engine: type[SteppingEngine], **changes: Any) -> Subject:
    return Subject(make=engine, is_sampling=False, deadline_s=5.0, quiet_s=0.001, **changes)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_engine_that_keeps_the_contract_passes(check: Check) -> None:
    asyncio.run(check(subject(SteppingEngine)))


class GivesNoIds(SteppingEngine):
    def encode(self, prompt: object) -> list[int]:
        return []


class Finishing(SteppingEngine):
    """Completions are changed as they finish."""

    def changed(self, completion: Completion) -> Completion:
        return completion

    async def generate(self, request: Request) -> Completion:
        return self.changed(await super().generate(request))


class ForgetsALogProb(Finishing):
    def changed(self, completion: Completion) -> Completion:
        return replace(completion, behavior_logprobs=completion.behavior_logprobs[1:])


class HasAGapInItsSpans(Finishing):
    def changed(self, completion: Completion) -> Completion:
        return replace(completion, spans=[Span(0, 1, len(completion.completion_ids))])


class StopsEarlyForLength(Finishing):
    def changed(self, completion: Completion) -> Completion:
        first = Span(0, 0, 1)
        return replace(completion, completion_ids=[0], behavior_logprobs=[-0.5], spans=[first])


class CountsItsNeighbours(SteppingEngine):
    """The first token is the number of requests so far."""

    async def generate(self, request: Request) -> Completion:
        done = await super().generate(request)
        return replace(done, completion_ids=[len(self.requests), *done.completion_ids[1:]])


class WritesWhilePaused(SteppingEngine):
    async def pause(self) -> None:
        self.calls.append("pause")


class IgnoresSwaps(SteppingEngine):
    async def swap(self, policy_version: int, weights: Mapping[str, object]) -> None:
        self.calls.append("swap")


class RewritesHistory(Finishing):
    def changed(self, completion: Completion) -> Completion:
        newest = completion.spans[-1].policy_version
        return replace(completion, spans=[Span(newest, 0, len(completion.completion_ids))])


class ForgetsThePrefix(SteppingEngine):
    async def generate(self, request: Request) -> Completion:
        done = await super().generate(replace(request, resume_from=None))
        return replace(done, completion_ids=[token + 100 * bool(request.resume_from) for token in done.completion_ids])


class KeepsCancelledRequests(SteppingEngine):
    def written(self, request: Request) -> Completion | None:
        begun = next((each for each in self.requests if each is request), None)
        return super().written(request) or (_one_token("unfinished") if begun else None)


class LeavesRequestsHanging(SteppingEngine):
    async def aclose(self) -> None:
        if self._decoding:
            self._decoding.cancel()


def _one_token(finish_reason: FinishReason) -> Completion:
    return Completion(
        completion_ids=[0],
        behavior_logprobs=[-0.5],
        spans=[Span(0, 0, 1)],
        finish_reason=finish_reason,
        generate_s=0.0,
    )


@pytest.mark.parametrize(
    ("engine", "check", "said"),
    [
        (GivesNoIds, checks.a_prompt_is_encoded_and_a_completion_decoded, "encode gave"),
        (
            ForgetsALogProb,
            checks.a_completion_has_a_log_prob_and_a_version_for_each_token,
            "24 tokens came with 23",
        ),
        (HasAGapInItsSpans, checks.a_completion_has_a_log_prob_and_a_version_for_each_token, "not contiguous"),
        (StopsEarlyForLength, checks.a_completion_has_a_log_prob_and_a_version_for_each_token, "before max_tokens"),
        (CountsItsNeighbours, checks.a_seed_decides_the_tokens_whatever_else_runs, "gave other tokens beside"),
        (WritesWhilePaused, checks.nothing_is_written_while_it_is_paused, "wrote while it was paused"),
        (IgnoresSwaps, checks.tokens_after_a_swap_have_the_new_version, "after the swap to 7 tokens have"),
        (RewritesHistory, checks.tokens_after_a_swap_have_the_new_version, "written before a swap have its version"),
        (ForgetsThePrefix, checks.an_unfinished_completion_is_continued, "other tokens at first"),
        (KeepsCancelledRequests, checks.cancelling_a_request_frees_its_slot, "still running"),
        (LeavesRequestsHanging, checks.closing_fails_running_requests_and_may_be_repeated, "took more than"),
    ],
)
def test_an_engine_that_breaks_the_contract_is_told_how(engine: type[SteppingEngine], check: Check, said: str) -> None:
    with pytest.raises(NotConforming, match=said):
        asyncio.run(check(Subject(make=engine, is_sampling=False, deadline_s=0.5, quiet_s=0.001)))


def test_log_probs_are_compared_with_those_of_another_implementation() -> None:
    check = checks.log_probs_are_those_of_the_model
    asyncio.run(check(subject(SteppingEngine, score=lambda _, ids: [-0.5] * len(ids))))
    with pytest.raises(NotConforming, match=r"differs from the model's by 0\.5 nats"):
        asyncio.run(check(subject(SteppingEngine, score=lambda _, ids: [-1.0] * len(ids))))


def test_different_seeds_must_differ_if_the_engine_samples() -> None:
    sampling = Subject(make=SteppingEngine, deadline_s=5.0)
    with pytest.raises(NotConforming, match="6 different seeds gave the same tokens"):
        asyncio.run(checks.a_seed_decides_the_tokens_whatever_else_runs(sampling))


# ── subject ───────────────────────────────────────────────────────────────────────────────────────
# Steps of the checks that every one of them relies on.


def completion(num_tokens: int, logprob: float = -0.5, *spans: Span) -> Completion:
    return Completion(
        completion_ids=[1] * num_tokens,
        behavior_logprobs=[logprob] * num_tokens,
        spans=list(spans) or [Span(0, 0, num_tokens)],
        finish_reason="stop",
        generate_s=0.0,
    )


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (completion(9), "has 9 tokens, expected 1 .. 8"),
        (completion(2, 0.5), "a log-prob is 0.5"),
        (completion(2, float("nan")), "a log-prob is nan"),
        (completion(2, -0.5, Span(0, 0, 1)), "spans end at 1 of 2"),
        (completion(2, -0.5, Span(0, 0, 1), Span(1, 1, 1), Span(2, 1, 2)), "not contiguous"),
    ],
)
def test_a_completion_that_is_not_whole_is_refused(broken: Completion, said: str) -> None:
    require_whole(completion(8), 8)
    with pytest.raises(NotConforming, match=said):
        require_whole(broken, 8)


def test_what_takes_too_long_is_named() -> None:
    with pytest.raises(NotConforming, match=r"the kettle took more than 0\.001 s"):
        asyncio.run(soon(Subject(make=SteppingEngine, deadline_s=0.001), asyncio.Event().wait(), "the kettle"))


def test_an_engine_without_seeds_is_asked_without_one() -> None:
    engine = SteppingEngine()
    assert request(Subject(make=SteppingEngine, is_seeded=False), engine, 3).seed is None
    assert request(Subject(make=SteppingEngine), engine, 3).seed == 3
