"""State of a run after its records."""

from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    FailedAttempt,
    Progressed,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    Taken,
)
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit

SUMMARY = TrajectorySummary(3, 5, 0, 0, 1, "stop")


def of(*records: AnyRecord, num_greedy: int = 0) -> RecordBook:
    book = RecordBook(Schedule(groups_per_step=1, group_size=1), num_greedy)
    for record in records:
        book.add(record)
    return book


def group(group_id: int, index: int = 0) -> list[AnyRecord]:
    unit = Unit(group_id, index)
    return [
        Admitted(group_id, 0, 0, 0),
        Result(unit, 1, SpoolRef("s", group_id, 0, 1, 0), SUMMARY),
        Rewarded(unit, 1.0),
    ]


def test_greedy_trajectories_are_in_the_batch_but_not_trained_on() -> None:
    book = of(*group(0), *group(0, index=1)[1:], Taken(0, [0]), num_greedy=1)
    assert [item.result.unit.index for item in book.batch(0)] == [0, 1]
    assert [item.result.unit.index for item in book.sampled(0)] == [0]


def test_a_restart_voids_what_was_sampled() -> None:
    book = of(*group(0), Restarted(0, 1, [3]))
    assert (book.results, book.rewards) == ({}, {})
    assert (book.min_versions[0], book.restarts[0]) == (1, 1)


def test_a_prefix_is_kept_until_its_result_or_a_failed_generation() -> None:
    prefix = Progressed(Unit(0, 0), 1, SpoolRef("s", 0, 0, 1, 0), SUMMARY)
    assert of(prefix).progress == {Unit(0, 0): prefix}
    assert of(prefix, *group(0)).progress == {}
    assert of(prefix, FailedAttempt(Unit(0, 0), "rollout", "out of memory", 1, False)).progress == {}
    assert of(prefix, FailedAttempt(Unit(0, 0), "environment", "KeyError", 1, False)).progress == {}


def test_a_prefix_is_kept_if_only_its_lease_ended_and_not_if_its_episode_began_anew() -> None:
    prefix = Progressed(Unit(0, 0), 1, SpoolRef("s", 0, 0, 1, 0), SUMMARY)
    assert of(prefix, Reissued(Unit(0, 0), 1, "node_lost")).progress == {Unit(0, 0): prefix}
    assert of(prefix, Reissued(Unit(0, 0), 1, "environment_lost")).progress == {}


def test_payloads_are_needed_until_two_checkpoints_contain_their_step() -> None:
    records = [record for group_id in range(5) for record in group(group_id)]
    records += [Taken(0, [0]), Taken(1, [1]), Taken(2, [2]), Dropped(3, "late", 3)]
    assert {record.unit.group_id for record in of(*records).needed()} == {0, 1, 2, 4}
    once = of(*records, Committed(0, "step_000001"))
    assert {record.unit.group_id for record in once.needed()} == {0, 1, 2, 4}
    twice = of(*records, Committed(0, "step_000001"), Committed(1, "step_000002"))
    assert {record.unit.group_id for record in twice.needed()} == {1, 2, 4}
    assert (twice.committed_step, twice.first_needed_step, twice.next_step) == (1, 1, 3)


def test_the_mean_correct_of_a_complete_group_outlasts_what_voids_its_rewards() -> None:
    wrong = Rewarded(Unit(0, 1), 1.0, {"correct": 0.0})
    book = RecordBook(Schedule(groups_per_step=1, group_size=2))
    for record in (Admitted(0, 0, 0, 0), Rewarded(Unit(0, 0), 1.0), wrong, wrong):
        book.add(record)
    assert book.correct == {0: 0.5}
    book.add(Restarted(0, 1, [3, 3]))
    book.add(Rewarded(Unit(0, 0), 0.0))
    assert book.correct == {0: 0.5}, "incomplete again"
    book.add(Rewarded(Unit(0, 1), 0.0))
    assert book.correct == {0: 0.5}, "a prompt that is retired stays so"


def test_held_out_prompts_are_never_retired() -> None:
    book = of(Rewarded(Unit(0, 0, "held_out"), 1.0))
    assert book.correct == {}
