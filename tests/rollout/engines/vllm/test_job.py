"""Needs no vLLM."""

from types import SimpleNamespace

from asyncrl.messages import Sampling, Span
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.engines.vllm.job import Job

BEGUN = Completion(
    completion_ids=[8, 9],
    behavior_logprobs=[-0.5, -0.25],
    spans=[Span(3, 0, 2)],
    finish_reason="unfinished",
    generate_s=100.0,
)


def job(begun: Completion | None = None, seed: int = 5) -> Job:
    return Job(Request(prompt_ids=[1, 2, 3], sampling=Sampling(max_tokens=9), seed=seed, resume_from=begun))


def test_what_was_begun_elsewhere_is_a_part_of_the_prompt_to_vllm_and_of_the_completion_to_us():
    mine = job(BEGUN)
    mine.begin(policy_version=4)

    done = mine.completion(SimpleNamespace(token_ids=[7], logprobs=[-1.0]), "stop")

    assert mine.given == [1, 2, 3, 8, 9]
    assert (done.completion_ids, done.behavior_logprobs) == ([8, 9, 7], [-0.5, -0.25, -1.0])
    assert done.spans == [Span(3, 0, 2), Span(4, 2, 3)]
    assert done.generate_s >= 100.0


def test_a_request_that_begins_here_has_its_own_seed_and_one_that_goes_on_another():
    assert job(seed=5).seed == 5
    assert job(BEGUN, seed=5).seed == job(BEGUN, seed=5).seed
    low_bits = {job(BEGUN, seed=seed).seed % 2**32 for seed in range(100)}  # all that torch keeps of it on a CPU
    assert len(low_bits | {5}) == 101


def test_a_seed_fits_what_vllm_takes():
    assert 0 <= job(seed=2**63 + 7).seed < 2**63
    assert 0 <= job(BEGUN, seed=2**63 - 1).seed < 2**63


def test_beginning_anew_takes_another_name_and_other_weights():
    mine = job()
    mine.begin(policy_version=4)
    first, mine.begins_anew = mine.id, True

    mine.begin(policy_version=5)

    assert mine.id != first
    assert not mine.begins_anew
    assert mine.spans.until(1) == [Span(5, 0, 1)]
