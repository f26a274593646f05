"""A consistent ledger has no problems, and each inconsistency is reported."""

import msgspec
import pytest
from msgspec.structs import replace

from asyncrl.broker.ledger.audit import Audit, LengthBucket, audit
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    LeftOut,
    Refused,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.words import Split

SCHEDULE = Schedule(groups_per_step=2, group_size=2, staleness=1.0)
"""The window holds four groups."""


def admitted(group_id: int, version: int = 0) -> Admitted:
    return Admitted(group_id, epoch=0, row=10 + group_id, policy_version=version)


def result(group_id: int, index: int, num_tokens: int = 10, version: int = 0, split: Split = "train") -> Result:
    summary = TrajectorySummary(num_tokens, 5, version, version, 1, "stop")
    return Result(Unit(group_id, index, split), 1, SpoolRef("s", 0, 0, 1, 0), summary)


def rewarded(group_id: int, index: int, split: Split = "train") -> Rewarded:
    return Rewarded(Unit(group_id, index, split), 1.0)


def finished(group_id: int, *lengths: int, version: int = 0) -> list[AnyRecord]:
    results = [result(group_id, index, length, version) for index, length in enumerate(lengths)]
    return [*results, *(rewarded(group_id, index) for index in range(len(lengths)))]


GOOD: list[AnyRecord] = [
    VersionLive(0, next_step=0),
    *map(admitted, range(4)),
    *finished(0, 10, 20),
    *finished(1, 30, 40),
    result(2, 0, 200),
    FailedAttempt(Unit(2, 1), "rollout", "prompt too long", 1, True),
    Dropped(2, "rollout: prompt too long", 200),
    admitted(4),
    Taken(0, [0, 1]),
    VersionLive(1, next_step=1),
    admitted(5, version=1),
    *finished(3, 100, 128),
    Reissued(Unit(4, 0), 1, "node_lost", 7),
    *finished(4, 16, 17, version=1),
    Duplicate(Unit(4, 0), 1, 18),
    Taken(1, [3, 4]),
    VersionLive(2, next_step=2),
    Committed(0, "step_000001"),
    result(0, 0, split="held_out"),
    rewarded(0, 0, split="held_out"),
]
"""Two steps of two groups; group 2 dropped, group 5 open; one held-out prompt."""


def test_an_episode_that_began_anew_is_among_the_reissued_and_its_tokens_are_counted() -> None:
    lost = Reissued(Unit(0, 0), 1, "environment_lost", 60)
    found = audit([GOOD[0], admitted(0), lost, *finished(0, 10, 20)], SCHEDULE)
    assert (found.reissued, found.problems) == ({"environment_lost": 1}, [])
    assert found.tokens_thrown_away["reissued"] == 60


def test_a_trajectory_that_was_left_out_is_counted_and_its_group_is_whole_without_it() -> None:
    left_out = LeftOut(Unit(0, 1), "reward: hung", 20)
    begun = [GOOD[0], admitted(0), admitted(1), *finished(1, 30, 40), result(0, 0), rewarded(0, 0), result(0, 1, 20)]
    found = audit([*begun, left_out, Taken(0, [0, 1])], SCHEDULE)
    assert (found.problems, found.left_out, found.trained) == ([], {"reward: hung": 1}, 2)
    assert (found.tokens_trained, found.tokens_thrown_away["left_out"]) == (80, 20)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([LeftOut(Unit(5, 0), "hung", 0)] * 2, "unit 5/0 was left out, but its group was not open, or it had a reward"),
        ([LeftOut(Unit(4, 0), "hung", 0)], "unit 4/0 was left out, but its group was not open, or it had a reward"),
        ([LeftOut(Unit(5, 0), "hung", 0), result(5, 0)], "unit 5/0 was left out of its group, and has a result since"),
    ],
)
def test_a_trajectory_that_cannot_have_been_left_out_is_a_problem(records: list[AnyRecord], problem: str) -> None:
    assert any(problem in found for found in audited([*GOOD, *records]).problems)


def test_a_restart_samples_what_was_left_out_again() -> None:
    again: list[AnyRecord] = [replace(record, num_restarts=1) for record in finished(0, 10, 20)]
    other = [admitted(1), *finished(1, 1, 1)]
    left_out: list[AnyRecord] = [admitted(0), LeftOut(Unit(0, 1), "reward: hung", 20), Restarted(0, 0, [])]
    found = audit([GOOD[0], *left_out, *again, *other, Taken(0, [0, 1])], SCHEDULE)
    assert (found.problems, found.left_out) == ([], {"reward: hung": 1})


STALE = [
    f"unit 3/{index} is stale beyond its bound: step 2 trains version 1 on tokens of version 0, expected at most 0 "
    f"versions between them, got 1"
    for index in range(2)
]


def audited(records: list[AnyRecord]) -> Audit:
    return audit(iter(records), SCHEDULE)


def without(record: AnyRecord) -> list[AnyRecord]:
    assert record in GOOD
    return [other for other in GOOD if other != record]


def test_every_group_is_in_one_place():
    good = audited(GOOD)
    assert (good.issued, good.trained, sum(good.dropped.values()), good.open) == (6, 4, 1, 1)
    assert (good.steps, good.skipped, good.double_trained, good.problems) == (2, 0, 0, [])


def test_committed_are_the_groups_of_steps_in_a_checkpoint():
    assert audited(GOOD).committed == 2
    assert audited([*GOOD, Committed(1, "step_000002")]).committed == 4


def test_drops_are_counted_by_reason_most_frequent_first():
    more = [record for group_id in (6, 7) for record in (admitted(group_id), Dropped(group_id, "reward: hung", 0))]
    assert list(audited([*GOOD, *more]).dropped.items()) == [("reward: hung", 2), ("rollout: prompt too long", 1)]


def test_lengths_of_dropped_trajectories_stand_beside_those_of_trained_ones():
    good = audited(GOOD)
    assert good.lengths == [
        LengthBucket(max_tokens=16, trained=2, dropped=0),
        LengthBucket(max_tokens=32, trained=3, dropped=0),
        LengthBucket(max_tokens=64, trained=1, dropped=0),
        LengthBucket(max_tokens=128, trained=2, dropped=0),
        LengthBucket(max_tokens=256, trained=0, dropped=1),
    ]
    assert good.dropped_unfinished == 1


def test_staleness_is_a_histogram_of_trained_trajectories():
    good = audited(GOOD)
    assert good.staleness == {0: 6, 1: 2}, "group 3 was written by version 0 and trained in version 1"
    assert good.staleness_max == 1


def test_a_step_trains_its_own_version_even_if_that_never_went_live():
    skipped = without(VersionLive(1, next_step=1))
    assert audited(skipped).staleness == {0: 6, 1: 2}


@pytest.mark.parametrize(
    ("max_staleness", "on_straggler", "over", "problems"),
    [
        (None, "wait", 0, []),
        (1, "wait", 0, []),
        (0, "train", 2, []),
        (0, "wait", 2, STALE),
        (0, "reissue", 2, STALE),
    ],
)
def test_trajectories_over_max_staleness_are_counted_and_are_a_problem_unless_allowed(
    max_staleness, on_straggler, over, problems
):
    found = audit(GOOD, replace(SCHEDULE, max_staleness=max_staleness, on_straggler=on_straggler))
    assert (found.over_max_staleness, found.problems) == (over, problems)


def test_a_restarted_group_counts_its_new_results_and_the_lengths_of_the_old_ones():
    again = [replace(record, num_restarts=1) for record in finished(5, 50, 60, version=2)]
    records = [*GOOD, *finished(5, 40, 300, version=1), Restarted(5, 2, [40, 300]), *again]
    found = audited([*records, Taken(2, [5, 9]), admitted(6, version=2)])

    assert found.restarted == 1
    assert found.tokens_thrown_away["restarted"] == 340
    assert [(b.max_tokens, b.trained, b.restarted) for b in found.lengths][2:] == [
        (64, 3, 1), (128, 2, 0), (256, 0, 0), (512, 0, 1)
    ]  # fmt: skip
    assert found.staleness == {0: 8, 1: 2}, "what was thrown away is not what was trained"
    assert not [problem for problem in found.problems if "unit 5/" in problem]


def test_attempts_are_counted():
    good = audited(GOOD)
    assert (good.reissued, good.duplicates) == ({"node_lost": 1}, 1)
    assert (good.failed_attempts, good.dead_letters) == ({"rollout": 1}, 1)


def test_tokens_are_trained_or_thrown_away():
    good = audited(GOOD)
    assert good.tokens_trained == 10 + 20 + 30 + 40 + 100 + 128 + 16 + 17
    assert {cause: tokens for cause, tokens in good.tokens_thrown_away.items() if tokens} == {
        "dropped": 200,
        "duplicates": 18,
        "reissued": 7,
    }


def test_a_refused_trajectory_is_thrown_away_and_the_next_result_of_its_unit_counts():
    failed, refused = FailedAttempt(Unit(5, 0), "payload", "NaN", 1, False), Refused(Unit(5, 0), 9, "NaN", 300)
    sampled_again = finished(5, 11, 12, version=2)
    again = audited([*GOOD, result(5, 0, 300, 2), failed, refused, *sampled_again, admitted(6, 2),
                     *finished(6, 1, 1, version=2), Taken(2, [5, 6])])  # fmt: skip
    assert again.problems == []
    assert again.tokens_thrown_away["refused"] == 300
    assert again.tokens_trained == audited(GOOD).tokens_trained + 11 + 12 + 2
    assert again.failed_attempts == {"rollout": 1, "payload": 1}


def test_a_group_that_its_step_left_out_is_not_trained_and_counted_by_cause():
    left_out = audited([*GOOD, Untrained(1, 3, "impossible log-prob: nan at position 3", 228)])
    assert (left_out.problems, left_out.untrained) == ([], {"impossible log-prob": 1})
    assert left_out.issued == left_out.trained + 1 + sum(left_out.dropped.values()) + left_out.open
    assert left_out.tokens_trained == audited(GOOD).tokens_trained - 228
    assert left_out.tokens_thrown_away["untrained"] == 228
    assert sum(left_out.staleness.values()) == sum(audited(GOOD).staleness.values()) - 2
    assert left_out.lengths[-2] == LengthBucket(max_tokens=128, trained=0, dropped=2)


def test_an_empty_ledger_is_consistent():
    empty = audited([])
    assert (empty.issued, empty.peak_open, empty.staleness_max, empty.lengths, empty.problems) == (0, 0, 0, [], [])


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_run_killed_anywhere_is_consistent(length):
    so_far = audited(GOOD[:length])
    assert so_far.problems == []
    assert so_far.issued == so_far.trained + sum(so_far.dropped.values()) + so_far.open


def test_an_audit_survives_json():
    good = audited(GOOD)
    assert msgspec.json.decode(msgspec.json.encode(good), type=Audit) == good


@pytest.mark.parametrize(
    ("records", "problems"),
    [
        pytest.param([*GOOD, admitted(7)], ["group 6 was skipped: it was never admitted, but group 7 was"], id="hole"),
        pytest.param([*GOOD, admitted(5)], ["group 5 was admitted 2 times"], id="admitted twice"),
        pytest.param(
            [*GOOD, *finished(5, 1, 1), Taken(2, [0, 5])],
            ["group 0 was trained 2 times: in steps 1, 3"],
            id="trained twice",
        ),
        pytest.param(
            [*GOOD, Dropped(1, "late", 0)],
            ["group 1 was trained in step 1 and dropped (late)"],
            id="trained and dropped",
        ),
        pytest.param(
            [*GOOD, Dropped(2, "late", 0)],
            ["group 2 was dropped 2 times (rollout: prompt too long; late)"],
            id="dropped twice",
        ),
        pytest.param([*GOOD, Dropped(9, "late", 0)], ["group 9 was dropped (late), but never admitted"], id="unknown"),
        pytest.param(
            [*GOOD, *finished(9, 1, 1), *finished(5, 1, 1), Taken(2, [5, 9])],
            [
                "group 9 was trained in step 3, but never admitted",
                "unit 9/0 has a result, but group 9 was never admitted",
                "unit 9/1 has a result, but group 9 was never admitted",
            ],
            id="trained without admission",
        ),
        pytest.param([*GOOD, result(3, 1)], ["unit 3/1 has 2 results"], id="two results"),
        pytest.param(
            [*GOOD, Restarted(3, 2, []), Restarted(2, 2, [])],
            ["group 3 was restarted, but it was not open", "group 2 was restarted, but it was not open"],
            id="restarted after its end",
        ),
        pytest.param([*GOOD, rewarded(3, 1)], ["unit 3/1 has 2 rewards"], id="two rewards"),
        pytest.param(
            [*GOOD, Refused(Unit(5, 0), 9, "NaN", 4)],
            ["unit 5/0 was refused, but it had no result, or was taken by a step already"],
            id="refused without a result",
        ),
        pytest.param(
            [*GOOD, Refused(Unit(0, 0, "held_out"), 9, "NaN", 4), Refused(Unit(0, 0, "held_out"), 9, "NaN", 4)],
            ["unit 0/0 (held-out) was refused, but it had no result, or was taken by a step already"],
            id="refused twice",
        ),
        pytest.param(
            [*GOOD, Untrained(0, 3, "NaN", 4), Untrained(1, 4, "NaN", 4), Untrained(1, 4, "NaN", 4)],
            [
                "group 3 was left out of a step that does not contain it, or twice",
                "group 4 was left out of a step that does not contain it, or twice",
            ],
            id="left out of another step",
        ),
        pytest.param(
            [*GOOD, result(0, 0, split="held_out")], ["unit 0/0 (held-out) has 2 results"], id="two held-out results"
        ),
        pytest.param(
            without(result(1, 0, 30)), ["unit 1/0 was trained in step 1, but has no result"], id="without a result"
        ),
        pytest.param(
            without(rewarded(4, 1)), ["unit 4/1 was trained in step 2, but has no reward"], id="without a reward"
        ),
        pytest.param(
            without(Taken(0, [0, 1])),
            ["step 1 was skipped: it got no batch, but step 2 did", "5 groups were open at once, but the window "
             "holds 4"],
            id="step skipped",
        ),
        pytest.param(
            [*GOOD, *finished(5, 1, 1), Taken(2, [5])],
            ["the batch of step 3 has 1 of 2 groups (groups_per_step)"],
            id="short batch",
        ),
        pytest.param(
            [*GOOD, *map(admitted, range(6, 10))], ["5 groups were open at once, but the window holds 4"], id="window"
        ),
    ],
)  # fmt: skip
def test_each_inconsistency_is_named(records, problems):
    assert [problem for problem in audited(records).problems if problem in problems] == problems


def test_ids_left_out_by_retirement_are_no_problem_of_the_ledger_and_are_counted() -> None:
    found = audit([*GOOD, admitted(7, version=2)], SCHEDULE, retires=True)
    assert (found.skipped, found.retired, found.problems) == (0, 1, [])


def test_skipped_and_double_trained_are_counted():
    bad = audited([*GOOD, admitted(8), Taken(2, [0, 1])])
    assert (bad.skipped, bad.double_trained) == (2, 2)
