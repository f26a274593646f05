"""Needs no vLLM."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import replace

from asyncrl.algo.routing import from_routing, to_routing
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.engines.vllm.request import VllmRequest

PREFIX = Completion(
    completion_ids=[8, 9],
    behavior_logprobs=[-0.5, -0.25],
    spans=[Span(3, 0, 2)],
    finish_reason="unfinished",
    generate_s=100.0,
)


def make(prefix: Completion | None = None, seed: int | None = 5) -> VllmRequest:
    return VllmRequest(Request(prompt_ids=[1, 2, 3], sampling=Sampling(max_tokens=9), seed=seed, resume_from=prefix))


def seed_of(prefix: Completion | None = None, *, seed: int) -> int:
    taken = make(prefix, seed).seed
    assert taken is not None
    return taken


def test_resumed_tokens_are_prompt_to_vllm_and_part_of_the_completion():
    mine = make(PREFIX)
    mine.begin(policy_version=4)

    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0], masks=[])
    done = mine.completion(output, "stop")

    assert mine.prompt_ids == [1, 2, 3, 8, 9]
    assert (done.completion_ids, done.behavior_logprobs) == ([8, 9, 7], [-0.5, -0.25, -1.0])
    assert done.spans == [Span(3, 0, 2), Span(4, 2, 3)]
    assert done.generate_s >= 100.0


def test_masks_of_resumed_tokens_come_first_and_unasked_ones_are_left_out():
    asked = replace(make().request.sampling, top_k=3, replay_mask=True)
    prefix = replace(PREFIX, mask_counts=[1, 2], mask_ids=[8, 5, 9])
    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0], masks=[[6, 7]])

    done = VllmRequest(replace(make(prefix).request, sampling=asked)).completion(output, "stop")

    assert (done.mask_counts, done.mask_ids) == ([1, 2, 2], [8, 5, 9, 6, 7])
    unasked = make()
    unasked.begin(policy_version=4)
    assert unasked.completion(output, "stop").mask_counts == []


def test_experts_are_those_of_layers_that_have_some_and_of_resumed_tokens_the_ones_recorded_before():
    """Three prompt tokens, two resumed ones and one of vLLM, which read the first five."""
    experts = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2)
    output: Any = SimpleNamespace(token_ids=[7], logprobs=[-1.0], masks=[], experts=experts)
    before = np.full((4, 2, 2), 99, np.uint8)
    asked = replace(make().request.sampling, replay_routes=True)

    def completed(prefix: Completion) -> np.ndarray:
        request = VllmRequest(replace(make(prefix).request, sampling=asked), expert_layers=[0, 2])
        routing = request.completion(output, "stop").routing
        assert routing
        return from_routing(routing)

    np.testing.assert_array_equal(completed(PREFIX), experts[:, [0, 2]])
    resumed = completed(replace(PREFIX, routing=to_routing(before)))
    np.testing.assert_array_equal(resumed[:4], before)
    np.testing.assert_array_equal(resumed[4:], experts[4:, [0, 2]])


def test_a_resumed_request_has_another_seed():
    assert seed_of(seed=5) == 5
    assert seed_of(PREFIX, seed=5) == seed_of(PREFIX, seed=5)
    low_bits = {seed_of(PREFIX, seed=seed) % 2**32 for seed in range(100)}  # torch keeps only these on a CPU
    assert len(low_bits | {5}) == 101


def test_a_request_without_a_seed_has_none_when_it_is_resumed_either():
    assert make(seed=None).seed is None
    assert make(PREFIX, seed=None).seed is None


def test_a_seed_fits_what_vllm_takes():
    assert 0 <= seed_of(seed=2**63 + 7) < 2**63
    assert 0 <= seed_of(PREFIX, seed=2**63 - 1) < 2**63


def test_a_restart_takes_a_new_id_and_version():
    mine = make()
    mine.begin(policy_version=4)
    first, mine.restarts = mine.id, True

    mine.begin(policy_version=5)

    assert mine.id != first
    assert not mine.restarts
    assert mine.spans.until(1) == [Span(5, 0, 1)]
