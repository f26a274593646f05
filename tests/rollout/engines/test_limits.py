from typing import Any

import pytest

from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.limits import check


def request(prompt_ids: list[int], max_tokens: int = 4, **sampling: Any) -> Request:
    return Request(prompt_ids=prompt_ids, sampling=Sampling(max_tokens=max_tokens, **sampling), seed=0)


def test_a_request_that_just_fits_is_served():
    check(request([0, 9, 5], max_tokens=5, top_p=0.1, top_k=3, stop=["x"]), positions=8, vocab_size=10)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (request([]), "at least 1 token"),
        (request([1], max_tokens=0), "max_tokens of at least 1"),
        (request([1, 2, 3, 4, 5]), "5 tokens and max_tokens=4 do not fit a slot of 8"),
        (request([1, 10]), "ids from 1 to 10, but the model knows 0 to 9"),
        (request([-1]), "ids from -1"),
        (request([1], temperature=-0.5), "temperature >= 0"),
        (request([1], temperature=float("nan")), "temperature >= 0"),
        (request([1], top_p=0.0), "0 < top_p <= 1"),
        (request([1], top_k=-1), "top_k >= 0"),
        (request([1], stop=["a", ""]), "stop string is empty"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_for_good(refused, why):
    with pytest.raises(EngineError, match=why) as caught:
        check(refused, positions=8, vocab_size=10)

    assert not caught.value.retryable
