"""Steps of the checks that every one of them relies on."""

import asyncio

import pytest

from asyncrl.engine import Completion
from asyncrl.messages.trajectory import Span
from asyncrl.testing.engine import NotConforming, Subject, request, require_whole, soon
from tests.testing.stepping import SteppingEngine


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
