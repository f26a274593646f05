import pytest

from asyncrl.messages import Sampling, Span
from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.job import Job


def job_with(*turns: tuple[int, int]) -> Job:
    job = Job(Request(prompt_ids=[1], sampling=Sampling(max_tokens=9), seed=0))
    for policy_version, written in turns:
        job.turn(policy_version, written)
    return job


def test_spans_cover_every_token_once():
    assert job_with((3, 0), (4, 2), (6, 5)).spans(9) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 9)]


def test_a_version_that_wrote_nothing_has_no_span():
    assert job_with((3, 0), (4, 0), (5, 2), (6, 2)).spans(4) == [Span(4, 0, 2), Span(6, 2, 4)]


def test_the_newest_version_may_not_have_written_yet():
    assert job_with((3, 0), (4, 2)).spans(2) == [Span(3, 0, 2)]


def test_the_same_version_again_goes_on_with_its_span():
    assert job_with((3, 0), (3, 2), (4, 5), (3, 5)).spans(6) == [Span(3, 0, 6)]


@pytest.mark.parametrize(
    ("sampling", "is_plain", "is_filtered"),
    [
        (Sampling(max_tokens=9), True, False),
        (Sampling(max_tokens=9, temperature=0.5), False, False),
        (Sampling(max_tokens=9, top_p=0.9), False, True),
        (Sampling(max_tokens=9, top_k=3), False, True),
        (Sampling(max_tokens=9, temperature=0.0, top_k=3), False, False),
    ],
)
def test_filters_count_unless_the_job_is_greedy(sampling, is_plain, is_filtered):
    job = Job(Request(prompt_ids=[1], sampling=sampling, seed=0))

    assert (job.is_plain, job.is_filtered) == (is_plain, is_filtered)
