"""Every damage of one field is named, and no sound trajectory is."""

import time
from random import Random

import pytest
from msgspec.structs import replace

from asyncrl.messages.sound import CAUSES, problem_of, summary_of, summary_problem_of
from asyncrl.messages.trajectory import Span, Trajectory, TrajectoryLimits, TrajectorySummary, Unit
from tests.messages.damage import DAMAGES, LIMITS, as_bytes, sound, through_the_wire
from tests.messages.episode_damage import OF_EPISODES

NUM_EACH = 400
NUM_SOUND = 2_500


def test_no_sound_trajectory_has_a_problem() -> None:
    dice = Random(1)
    for _ in range(NUM_SOUND):
        made = sound(dice)
        assert problem_of(made, made.unit, summary_of(made), LIMITS) == ""


@pytest.mark.slow("ten thousand damages")
@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_of_one_field_is_named_by_its_cause(name: str) -> None:
    cause, damage = DAMAGES[name]
    dice = Random(name)
    for number in range(NUM_EACH):
        whole = sound(dice)
        damaged, summary = damage((whole, summary_of(whole)), dice)
        problem = problem_of(through_the_wire(damaged), whole.unit, summary, LIMITS)
        assert problem.startswith(f"{cause}: "), f"trajectory {number}: {problem or 'no problem was found'}"
        assert "expected" in problem or cause.startswith("summary")


def test_more_than_ten_thousand_damaged_trajectories_are_tried_and_every_cause_is_among_them() -> None:
    assert len(DAMAGES) * NUM_EACH > 10_000
    # Decoding refuses an unknown finish reason: only the rollout's own check can meet one.
    causes = {cause for cause, _ in (*DAMAGES.values(), *OF_EPISODES.values())}
    assert causes == set(CAUSES) - {"unknown finish reason"}


def small(**changes: object) -> Trajectory:
    whole = Trajectory(
        Unit(3, 1),
        prompt_ids=as_bytes("i", [7, 7]),
        completion_ids=as_bytes("i", [4, 5, 6]),
        behavior_logprobs=as_bytes("f", [-0.5, -1.0, -0.25]),
        spans=[Span(4, 0, 1), Span(2, 1, 3)],
        finish_reason="stop",
        text="4 5 6",
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"completion_ids": as_bytes("i", [4, -5, 6])},
            "token id outside the vocabulary: completion id -5 at position 1, expected 0 .. 9",
        ),
        (
            {"prompt_ids": as_bytes("i", [7, 10])},
            "token id outside the vocabulary: prompt id 10 at position 1, expected 0 .. 9",
        ),
        (
            {"behavior_logprobs": as_bytes("f", [-0.5, -1.0, float("nan")])},
            "impossible log-prob: nan at position 2, expected -1000 .. 0",
        ),
        (
            {"behavior_logprobs": as_bytes("f", [-0.5, 0.5, -0.25])},
            "impossible log-prob: 0.5 at position 1, expected -1000 .. 0",
        ),
        (
            {"spans": [Span(4, 0, 1), Span(2, 1, 2)]},
            "spans that do not cover the tokens: 2 spans, expected contiguous, non-empty ones that cover 0 .. 3",
        ),
        ({"spans": [Span(5, 0, 3)]}, "impossible policy version: 5 in tokens 0 .. 3, expected 0 .. 4"),
        (
            {"mask_counts": as_bytes("i", [1, 2]), "mask_ids": as_bytes("i", [4, 5, 6])},
            "impossible sampling mask: 2 sizes, expected one for each of 3 tokens, and whole ids",
        ),
        (
            {"mask_counts": as_bytes("i", [1, 2, 1]), "mask_ids": as_bytes("i", [4, 5, 6, 7])},
            "impossible sampling mask: 2 of 3 tokens are in their masks, expected all",
        ),
        ({"finish_reason": "tired"}, "unknown finish reason: 'tired', expected length, stop, unfinished"),
        ({"generate_s": -1.0}, "impossible generation time: -1.0 s, expected a finite number, 0 or more"),
        ({"unit": Unit(3, 2)}, "payload of another unit: train 3/2, expected train 3/1"),
        (
            {"spans": [Span(4, 0, 3)]},
            "summary that differs from the payload: oldest_version 2 in the summary, 4 in the payload; "
            "num_spans 2 in the summary, 1 in the payload",
        ),
    ],
)
def test_a_problem_is_one_sentence_with_what_was_found_and_expected(changes: dict[str, object], problem: str) -> None:
    summary = summary_of(small())
    assert problem_of(small(**changes), Unit(3, 1), summary, TrajectoryLimits(10, 8, 8, 4)) == problem


def test_what_is_unknown_is_not_checked() -> None:
    huge = small(completion_ids=as_bytes("i", [4, 5, 2**31 - 1]), spans=[Span(2**40, 0, 3)])
    assert problem_of(huge, Unit(3, 1), None, TrajectoryLimits()) == ""
    negative = small(completion_ids=as_bytes("i", [4, 5, -1]))
    assert problem_of(negative, Unit(3, 1), None, TrajectoryLimits()).startswith("token id outside the vocabulary")


def test_masks_are_missed_only_where_they_are_to_be_replayed() -> None:
    whole, masked = small(), TrajectoryLimits(replay_mask=True)
    assert problem_of(whole, whole.unit, None, TrajectoryLimits()) == ""
    missing = "impossible sampling mask: none, expected one for each token (sampling.replay_mask)"
    assert problem_of(whole, whole.unit, None, masked) == missing


def test_a_summary_has_lengths_versions_and_the_finish_reason() -> None:
    assert summary_of(small()) == TrajectorySummary(3, 2, 2, 4, 2, "stop")


def test_a_trajectory_of_2500_tokens_is_checked_in_microseconds() -> None:
    long = small(
        completion_ids=as_bytes("i", [5] * 2500),
        behavior_logprobs=as_bytes("f", [-0.5] * 2500),
        spans=[Span(1, 0, 1200), Span(2, 1200, 2500)],
    )
    summary = summary_of(long)
    seconds = []
    for _ in range(200):
        start_s = time.perf_counter()
        problem_of(long, long.unit, summary, TrajectoryLimits(10, 2500, 8, 4))
        seconds.append(time.perf_counter() - start_s)
    assert min(seconds) < 100e-6, "5 us on an idle machine"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_tokens": 2**31},
        {"num_tokens": 0},
        {"prompt_tokens": -1},
        {"prompt_tokens": 9},
        {"num_spans": 4},
        {"num_spans": 0},
        {"oldest_version": -1},
        {"oldest_version": 5},
        {"newest_version": 5},
    ],
)
def test_a_summary_that_no_trajectory_can_have_is_refused_without_its_payload(changes: dict[str, int]) -> None:
    summary, limits = summary_of(small()), TrajectoryLimits(10, 8, 8, 4)
    assert summary_problem_of(summary, limits) == summary_problem_of(summary, TrajectoryLimits()) == ""
    assert summary_problem_of(replace(summary, **changes), limits).startswith("impossible summary: ")
