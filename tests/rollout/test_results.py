"""Results are put until they are settled, and inconsistent completions are refused."""

import array

import msgspec
import pytest

from asyncrl.errors import EngineError
from asyncrl.messages import Lease, Prompt, PutItem, Sampling, Span, Trajectory, Unit
from asyncrl.rollout.engine import Completion
from asyncrl.rollout.results import RESEND_S, UnsettledResults, to_put_item

UNIT = Unit(3, 1)
LEASE = Lease(
    lease_id=77,
    group_id=3,
    indices=[0, 1],
    split="train",
    prompt=Prompt(text="how many"),
    sampling=Sampling(max_tokens=8),
    seed=5,
    max_prompt_tokens=16,
    expires_in_s=60.0,
)


def completion(**changes: object) -> Completion:
    whole = Completion(
        completion_ids=[4, 5, 6],
        behavior_logprobs=[-0.5, -1.0, -0.25],
        spans=[Span(2, 0, 1), Span(4, 1, 3)],
        finish_reason="stop",
        generate_s=0.5,
    )
    return msgspec.structs.replace(whole, **changes)


def item(index: int = 1) -> PutItem:
    return to_put_item(LEASE, Unit(3, index), [7, 7], completion(), text="4 5 6", node="r-0")


def test_the_payload_decodes_to_the_trajectory():
    trajectory = msgspec.msgpack.decode(item().payload, type=Trajectory)
    assert (trajectory.unit, trajectory.text, trajectory.node) == (UNIT, "4 5 6", "r-0")
    assert array.array("i", bytes(trajectory.completion_ids)).tolist() == [4, 5, 6]
    assert array.array("i", bytes(trajectory.prompt_ids)).tolist() == [7, 7]
    assert array.array("f", bytes(trajectory.behavior_logprobs)).tolist() == [-0.5, -1.0, -0.25]
    assert trajectory.spans == [Span(2, 0, 1), Span(4, 1, 3)]


def test_the_summary_has_versions_and_lengths():
    summary = item().summary
    assert (summary.num_tokens, summary.prompt_tokens, summary.num_spans) == (3, 2, 2)
    assert (summary.oldest_version, summary.newest_version, summary.finish_reason) == (2, 4, "stop")


@pytest.mark.parametrize(
    "changes",
    [
        {"completion_ids": [], "behavior_logprobs": [], "spans": []},
        {"behavior_logprobs": [-0.5]},
        {"spans": []},
        {"spans": [Span(2, 0, 2)]},
        {"spans": [Span(2, 1, 3)]},
        {"spans": [Span(2, 0, 2), Span(3, 1, 3)]},
        {"spans": [Span(2, 0, 3), Span(3, 3, 3)]},
        {"spans": [Span(2, 0, 4)]},
    ],
    ids=["no tokens", "a log-prob short", "no spans", "a token short", "not from 0", "overlap", "empty", "too long"],
)
def test_inconsistent_completions_are_refused(changes):
    with pytest.raises(EngineError, match=r"^the engine('s| returned)") as refused:
        to_put_item(LEASE, UNIT, [7], completion(**changes), text="", node="r-0")
    assert not refused.value.retryable


def test_a_fresh_result_is_taken_once():
    results = UnsettledResults()
    results.add(item(), now_s=0.0)
    assert [fresh.unit for fresh in results.take_fresh()] == [UNIT]
    assert results.take_fresh() == []
    assert len(results) == 1


def test_a_result_not_settled_in_time_is_put_again_until_it_is():
    results = UnsettledResults()
    results.add(item(0), now_s=0.0)
    results.add(item(1), now_s=1.0)
    assert results.take_overdue(RESEND_S - 0.1) == []
    assert [late.unit.index for late in results.take_overdue(RESEND_S)] == [0]
    assert [late.unit.index for late in results.take_overdue(RESEND_S + 1.0)] == [1], "the first was put again just now"
    assert [late.unit.index for late in results.take_overdue(2 * RESEND_S)] == [0]
    results.settle(Unit(3, 0))
    assert [late.unit.index for late in results.take_overdue(4 * RESEND_S)] == [1]


def test_settling_frees_the_memory():
    results = UnsettledResults()
    results.add(item(), now_s=0.0)
    results.take_fresh()
    results.settle(UNIT)
    results.settle(UNIT)
    assert len(results) == 0
