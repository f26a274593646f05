"""Results are put until they are settled, and inconsistent completions are refused."""

import array

import msgspec
import pytest

from asyncrl.engine import Completion
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import EngineError
from asyncrl.messages.rollout import Lease
from asyncrl.messages.spool import PutItem
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trajectory import Image, Prompt, Sampling, Span, Trajectory, Unit
from asyncrl.rollout import results as module
from asyncrl.rollout.results import RESEND_S, UnsettledResults, limits_of, to_put_item, to_sampled

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


def put(lease: Lease, unit: Unit, prompt_ids: list[int], completion: Completion, text: str = ""):
    sampled = SampledTrajectory(prompt_ids=prompt_ids, completion=completion, text=text)
    return to_put_item(lease, unit, sampled, node="r-0")


def item(index: int = 1) -> PutItem:
    return to_put_item(
        LEASE, Unit(3, index), SampledTrajectory(prompt_ids=[7, 7], completion=completion(), text="4 5 6"), node="r-0"
    )


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
        {"completion_ids": [4, 5, 100]},
        {"completion_ids": [4, 5, -1]},
        {"completion_ids": [4, 5, 2**40]},
        {"completion_ids": [4, 5, None]},
        {"behavior_logprobs": [-0.5, float("nan"), -0.5]},
        {"behavior_logprobs": [-0.5, None, -0.5]},
        {"finish_reason": "tired"},
        {"generate_s": float("nan")},
    ],
    ids=[
        *["no tokens", "a log-prob short", "no spans", "a token short", "not from 0", "overlap", "empty", "too long"],
        *["vocabulary", "negative id", "id of 41 bits", "no id", "NaN", "no log-prob", "finish reason", "time"],
    ],
)
def test_damaged_completions_are_refused_and_another_node_may_try(changes):
    with pytest.raises(EngineError, match=r"^the engine('s| returned)") as refused:
        to_put_item(
            LEASE,
            UNIT,
            SampledTrajectory(prompt_ids=[7], completion=completion(**changes), text=""),
            node="r-0",
            token_ids=TokenIds(100),
        )
    assert refused.value.retryable


MASKED = {"mask_counts": [2, 1, 3], "mask_ids": [4, 8, 5, 2, 6, 7]}
MASKING = msgspec.structs.replace(LEASE, sampling=Sampling(max_tokens=8, top_k=3, replay_mask=True), greedy=[2])


def test_sampling_masks_reach_the_payload_and_the_completion_to_resume():
    payload = to_put_item(
        MASKING, UNIT, SampledTrajectory(prompt_ids=[7, 7], completion=completion(**MASKED), text=""), node="r-0"
    ).payload
    stored = msgspec.msgpack.decode(payload, type=Trajectory)
    assert array.array("i", bytes(stored.mask_counts)).tolist() == [2, 1, 3]
    assert array.array("i", bytes(stored.mask_ids)).tolist() == [4, 8, 5, 2, 6, 7]
    assert to_sampled(stored, UNIT, limits_of(MASKING, 1, TokenIds(100))).completion == completion(**MASKED)


def test_an_engine_that_records_no_masks_is_noticed_before_its_completion_leaves_the_node():
    with pytest.raises(EngineError, match="sampling mask: none, expected one for each token"):
        put(MASKING, UNIT, [7, 7], completion())
    assert put(MASKING, Unit(3, 2), [7, 7], completion()), "a greedy one has none"


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(EngineError, match="cannot be encoded"):
        put(LEASE, UNIT, [7], completion(), text="\ud800")


def test_without_a_known_vocabulary_only_negative_ids_are_refused():
    to_put_item(
        LEASE,
        UNIT,
        SampledTrajectory(prompt_ids=[7], completion=completion(completion_ids=[4, 5, 2**30]), text=""),
        node="r-0",
    )
    with pytest.raises(EngineError, match="outside the vocabulary"):
        to_put_item(
            LEASE,
            UNIT,
            SampledTrajectory(prompt_ids=[7], completion=completion(completion_ids=[4, 5, -2]), text=""),
            node="r-0",
        )


def test_more_tokens_than_the_lease_allows_are_refused():
    with pytest.raises(EngineError, match="17 prompt tokens, expected at most 16"):
        put(LEASE, UNIT, [7] * 17, completion())


def test_a_stored_part_is_resumed_from_if_it_is_sound_and_of_the_same_unit():
    limits = limits_of(LEASE, 1, TokenIds(100))
    stored = msgspec.msgpack.decode(item().payload, type=Trajectory)
    assert to_sampled(stored, UNIT, limits).completion == completion()
    with pytest.raises(EngineError, match="payload of another unit: train 3/1, expected train 3/0") as refused:
        to_sampled(stored, Unit(3, 0), limits)
    assert refused.value.retryable
    cut = msgspec.structs.replace(stored, behavior_logprobs=stored.behavior_logprobs[:4])
    with pytest.raises(EngineError, match="arrays of wrong lengths"):
        to_sampled(cut, UNIT, limits)


def test_a_trajectory_has_the_pictures_of_its_prompt_and_the_grids_of_the_engine():
    lease = msgspec.structs.replace(LEASE, prompt=Prompt(text="<image> how many", images=[Image(bytes(32), 8, 8, 3)]))
    whole = completion(grids=[(1, 2, 4)])
    stored_item = put(lease, UNIT, [7, 7], whole)
    stored = msgspec.msgpack.decode(stored_item.payload, type=Trajectory)
    assert (stored.images, stored.grids) == (lease.prompt.images, [(1, 2, 4)])
    assert to_sampled(stored, UNIT, limits_of(lease, UNIT.index, TokenIds(100))).completion == whole
    with pytest.raises(EngineError, match="impossible grids of pictures: 0, expected one for each of 1 pictures"):
        put(lease, UNIT, [7, 7], completion())


def test_a_trajectory_too_large_to_be_stored_is_refused_with_size_limit_and_setting(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAYLOAD_BYTES", 50)
    with pytest.raises(EngineError) as refused:
        item()
    assert not refused.value.retryable
    num_bytes = str(refused.value).split()[3]
    assert int(num_bytes) > 50
    assert str(refused.value) == (
        f"the trajectory takes {num_bytes} bytes, at most 50 can be stored; lower sampling.max_tokens, which is 8 here"
    )


def test_a_fresh_result_is_taken_once():
    results = UnsettledResults()
    results.add(item())
    assert [fresh.unit for fresh in results.take_fresh()] == [UNIT]
    assert results.take_fresh() == []
    assert len(results) == 1


def test_a_result_not_settled_in_time_is_put_again_until_it_is():
    results = UnsettledResults()
    first, second = item(0), item(1)
    results.add(first)
    results.add(second)
    results.mark_put([first], now_s=0.0)
    results.mark_put([second], now_s=1.0)
    assert results.take_overdue(RESEND_S - 0.1) == []
    assert results.take_overdue(RESEND_S) == [first]
    results.mark_put([first], RESEND_S)
    assert results.take_overdue(RESEND_S + 1.0) == [second], "the first was put again just now"
    results.mark_put([second], RESEND_S + 1.0)
    assert results.take_overdue(2 * RESEND_S) == [first]
    results.settle(Unit(3, 0))
    assert [late.unit.index for late in results.take_overdue(4 * RESEND_S)] == [1]


def test_a_result_whose_put_still_waits_is_not_overdue():
    results = UnsettledResults()
    results.add(item())
    assert results.take_overdue(10 * RESEND_S) == []
    results.mark_put(results.take_fresh(), 10 * RESEND_S)
    assert results.take_overdue(12 * RESEND_S) == [item()]
    assert results.take_overdue(20 * RESEND_S) == [], "it is being put again"
    results.mark_all_fresh()
    assert results.take_overdue(30 * RESEND_S) == []
    assert results.take_fresh() == [item()]


def test_settling_frees_the_memory():
    results = UnsettledResults()
    results.add(item())
    results.take_fresh()
    results.settle(UNIT)
    results.settle(UNIT)
    assert len(results) == 0
