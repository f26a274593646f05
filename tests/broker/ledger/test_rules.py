"""Each record that could not have followed those before it is named."""

import math

import pytest
from msgspec.structs import replace

from asyncrl.broker.ledger.audit import RecordRules
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Measured,
    Result,
    Rewarded,
    Taken,
    VersionLive,
)
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

SCHEDULE = Schedule(groups_per_step=1, group_size=1, staleness=1.0)


def result(group_id: int, oldest: int = 0, newest: int | None = None, num_restarts: int = 0) -> Result:
    summary = TrajectorySummary(3, 5, oldest, oldest if newest is None else newest, 1, "stop")
    return Result(Unit(group_id, 0), 1, SpoolRef("s", 0, 0, 1, 0), summary, num_restarts)


def rewarded(group_id: int, reward: float = 1.0, **metrics: float) -> Rewarded:
    return Rewarded(Unit(group_id, 0), reward, metrics)


GOOD: list[AnyRecord] = [
    VersionLive(0, 0),
    Admitted(0, 0, 0, 0),
    Admitted(1, 0, 1, 0),
    result(0),
    rewarded(0),
    result(1),
    Taken(0, [0]),
    rewarded(1),
    VersionLive(1, 1),
    Admitted(2, 0, 2, 1),
    Taken(1, [1]),
    Committed(0, "step_000001"),
    Measured(1, 0.5, 8),
    result(2, 1, 2),
    VersionLive(2, 2),
    rewarded(2),
    Taken(2, [2]),
]


def problems(*records: AnyRecord, schedule: Schedule = SCHEDULE) -> list[str]:
    rules = RecordRules(schedule)
    for record in records:
        rules.add(record)
    return rules.problems


def test_records_of_a_run_have_no_problem() -> None:
    assert problems(*GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            Admitted(2, 0, 2, 1),
            Admitted(2, 0, 2, 0),
            "group 2 was admitted at version 0: expected the live one, 1",
        ),
        (
            result(2, 1, 2),
            result(2, 1, 3),
            "unit 2/0 has tokens of the versions 1 to 3: expected versions from 0 to 2, which existed by then",
        ),
        (
            result(1),
            result(1, -3, 0),
            "unit 1/0 has tokens of the versions -3 to 0: expected versions from 0 to 0, which existed by then",
        ),
        (
            result(2, 1, 2),
            result(2, 0, 2),
            "unit 2/0 has tokens of version 0: expected none older than its group, admitted or restarted at version 1",
        ),
        (
            result(2, 1, 2),
            result(2, 1, 2, num_restarts=1),
            "unit 2/0 has a result of restart 1: expected restart 0",
        ),
        (rewarded(2), rewarded(2, math.nan), "unit 2/0 has the reward nan: expected a finite number"),
        (rewarded(2), rewarded(2, 1.0, length=math.inf), "unit 2/0 has the length inf: expected a finite number"),
        (result(2, 1, 2), Measured(1, 0.5, 8), "unit 2/0 was rewarded before it had a result"),
        (rewarded(2), Measured(1, 0.5, 8), "unit 2/0 was taken by step 3 before it had a reward"),
        (Committed(0, "step_000001"), Committed(2, "step_000003"), "step 3 was committed, but only 2 steps were taken"),
        (
            VersionLive(2, 2),
            VersionLive(3, 3),
            "version 3 contains 3 steps, but only 2 steps were taken",
        ),
        (VersionLive(2, 2), VersionLive(7, 2), "version 7 contains 2 steps: expected version 2"),
        (Measured(1, 0.5, 8), Measured(2, 0.5, 8), "version 2 was evaluated, but never went live"),
        (Measured(1, 0.5, 8), Measured(1, math.nan, 8), "version 1 has the accuracy nan: expected a finite number"),
        (Taken(2, [2]), Taken(1, [2]), "step 2 was taken twice"),
    ],
)
def test_an_impossible_record_is_named(old: AnyRecord, new: AnyRecord, problem: str) -> None:
    assert old in GOOD
    assert problem in problems(*(new if record == old else record for record in GOOD))


def test_an_impossible_trajectory_that_nobody_used_is_only_a_claim() -> None:
    assert problems(*GOOD, Admitted(3, 0, 3, 2), result(3, 2, 99)) == []
    claimed = replace(result(0, 0, 99), unit=Unit(0, 0, "held_out"))
    assert problems(*GOOD, claimed) == []
    assert problems(*GOOD, claimed, Rewarded(claimed.unit, 1.0)) == [
        "unit 0/0 (held-out) has tokens of the versions 0 to 99: expected versions from 0 to 3, which existed by then"
    ]


def test_a_commit_of_an_earlier_step_than_before_is_named() -> None:
    again = Committed(0, "step_000001")
    assert problems(*GOOD, again) == ["step 1 was committed after step 1: expected a later one"]


def test_an_evaluation_without_prompts_measured_nothing() -> None:
    assert problems(*GOOD, Measured(1, math.nan, 0)) == []


def test_a_trajectory_is_stale_by_its_oldest_token() -> None:
    stale = [record for record in GOOD if record not in (VersionLive(1, 1), VersionLive(2, 2))]
    stale = [Admitted(2, 0, 2, 0) if record == Admitted(2, 0, 2, 1) else record for record in stale]
    stale = [result(2, 0, 2) if record == result(2, 1, 2) else record for record in stale]
    found = [problem for problem in problems(*stale) if "stale" in problem]
    assert found == [
        "unit 2/0 is stale beyond its bound: step 3 trains version 2 on tokens of version 0, expected at most 1 "
        "versions between them, got 2"
    ]
    completion = Schedule(groups_per_step=1, group_size=1, staleness=1.0, order="completion")
    assert not [problem for problem in problems(*stale, schedule=completion) if "stale" in problem]
