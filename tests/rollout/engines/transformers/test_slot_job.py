import pytest

from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engine import Request
from asyncrl.rollout.engines.transformers.slot_job import SlotJob


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
    job = SlotJob(Request(prompt_ids=[1], sampling=sampling, seed=0))

    assert (job.is_plain, job.is_filtered) == (is_plain, is_filtered)
