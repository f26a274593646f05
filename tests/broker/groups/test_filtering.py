"""A run in which everything fails ends, and says why; one in which something succeeds goes on."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from asyncrl.broker.groups.filtering import (
    LEAST_IN_A_ROW,
    LEAST_OVERLONG,
    LEAST_PATIENCE,
    OVERLONG,
    ZERO_VARIANCE,
    DropLimit,
    GroupFilter,
    first_needed,
)
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.records import Admitted, Dropped, Rewarded, Taken
from asyncrl.config.config import Config
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import RunFailed
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
from tests.broker.driver import Cluster, Reward, a_config, right, told_apart


@pytest.mark.parametrize(("window", "limit"), [(1, LEAST_IN_A_ROW), (16, 32), (100, 200)])
def test_more_drops_in_a_row_than_two_windows_end_the_run(window: int, limit: int) -> None:
    drops = DropLimit(window)
    for _ in range(limit):
        drops.dropped("reward: no such unit")
    with pytest.raises(RunFailed, match=rf"^{limit + 1} groups in a row .* because of reward: no such unit$"):
        drops.dropped("reward: no such unit")


def test_one_complete_group_starts_the_count_anew() -> None:
    drops = DropLimit(window=1)
    for _ in range(10):
        for _ in range(LEAST_IN_A_ROW):
            drops.dropped("bad luck")
        drops.completed()


@pytest.mark.parametrize(("window", "limit"), [(1, LEAST_OVERLONG), (16, 256), (100, 1600)])
def test_long_prompts_may_come_in_long_rows_but_not_for_ever(window: int, limit: int) -> None:
    drops = DropLimit(window)
    for _ in range(limit):
        drops.dropped(OVERLONG)
    with pytest.raises(RunFailed, match=rf"^{limit + 1} prompts were filtered .* data.max_prompt_tokens"):
        drops.dropped(OVERLONG)


def test_long_prompts_do_not_count_as_failures_and_a_complete_group_ends_their_row() -> None:
    drops = DropLimit(window=1)
    for _ in range(3):
        for _ in range(LEAST_OVERLONG):
            drops.dropped(OVERLONG)
        drops.dropped("bad luck")
        drops.completed()


def test_a_larger_window_may_fail_as_a_whole_too() -> None:
    limit = DropLimit(16)
    limit.window = 100
    for _ in range(200):
        limit.dropped("broken")
    with pytest.raises(RunFailed):
        limit.dropped("broken")


def test_a_trainer_that_refuses_every_group_ends_the_run_and_one_that_trains_on_some_goes_on() -> None:
    drops = DropLimit(window=1)
    for _ in range(3):
        for _ in range(LEAST_IN_A_ROW):
            drops.untrained("damaged")
            drops.completed()
        drops.trained()
    for _ in range(LEAST_IN_A_ROW):
        drops.untrained("damaged")
    with pytest.raises(RunFailed, match=r"^the trainer left out 33 groups in a row .* because of damaged$"):
        drops.untrained("damaged")


# ── test filtering ────────────────────────────────────────────────────────────────────────────
# Groups without a learning signal are filtered; a run in which all are filtered ends.

ids = count()


def a_group(*rewards: float, correct: tuple[float, ...] = ()) -> Group:
    group = Group(next(ids), Prompt(text="?"), len(rewards), min_version=0)
    for slot, reward, metric in zip(group.slots, rewards, correct or rewards, strict=True):
        slot.score(reward, {"correct": metric})
    return group


def a_filter(**schedule: Any) -> GroupFilter:
    return GroupFilter(Schedule(**{"filter": "zero_variance", "groups_per_step": 2, **schedule}))


def filtered(book: GroupFilter, *groups: Group) -> list[Group]:
    for group in groups:
        book.completed(group)
    return list(book.filtered())


def test_a_group_whose_rewards_are_all_equal_is_filtered_whatever_they_are() -> None:
    right, wrong, mixed, odd = a_group(1.0, 1.0), a_group(0.0, 0.0), a_group(0.0, 1.0), a_group(0.1, 0.1, 0.1)

    assert filtered(a_filter(), right, wrong, mixed, odd) == [right, wrong, odd]


def test_the_metric_decides_where_there_is_one() -> None:
    """For example a length penalty in the reward: rewards differ, and all answers are right."""
    all_right = a_group(1.0, 0.5, correct=(1.0, 1.0))
    one_right = a_group(0.5, 0.5, correct=(1.0, 0.0))

    assert filtered(a_filter(), all_right, one_right) == [one_right]
    assert filtered(a_filter(filter_metric="correct"), all_right, one_right) == [all_right]


def a_game(*rewards: tuple[float, ...]) -> Group:
    group = Group(next(ids), Prompt(text="?"), len(rewards), min_version=0)
    for slot, seats in zip(group.slots, rewards, strict=True):
        slot.score(sum(seats) / len(seats), {f"seat_{seat}": reward for seat, reward in enumerate(seats)})
    return group


def test_rewards_of_seats_are_compared_seat_by_seat() -> None:
    """In a game of two the mean is always zero, and there is much to learn."""
    decided, drawn = a_game((1.0, -1.0), (-1.0, 1.0)), a_game((0.0, 0.0), (0.0, 0.0))
    silent = a_game((1.0,), (1.0, 5.0))
    book = GroupFilter(Schedule(filter="zero_variance"), num_seats=2)

    assert filtered(book, decided, drawn, silent) == [drawn, silent]


def test_a_metric_that_is_named_like_a_seat_is_none_in_an_episode_of_one() -> None:
    group = a_game((1.0, 0.0), (1.0, 0.0))
    group.slots[0].reward = 0.0

    assert not filtered(a_filter(), group)


def test_a_verdict_without_the_metric_ends_the_run_and_says_what_it_has() -> None:
    with pytest.raises(RunFailed, match=r"filter_metric is 'acc', .* has no such metric \(it has: correct\)"):
        filtered(a_filter(filter_metric="acc"), a_group(1.0, 0.0))


def test_without_a_filter_nothing_is_filtered_and_nothing_said() -> None:
    book = a_filter(filter="none")

    assert filtered(book, a_group(1.0, 1.0)) == []
    assert book.metrics(0) == {}


def test_a_group_is_tested_once() -> None:
    book, group = a_filter(), a_group(1.0, 1.0)

    assert filtered(book, group) == [group]
    assert filtered(book) == []


@pytest.mark.parametrize(
    ("schedule", "patience"),
    [({"filter_patience": 3}, 3), ({"staleness": 0.0}, LEAST_PATIENCE), ({"groups_per_step": 64}, 16 * 128)],
)
def test_so_many_in_a_row_end_the_run_and_say_what_that_means(schedule: dict[str, Any], patience: int) -> None:
    book, group = a_filter(**schedule), a_group(0.0, 0.0)
    for _ in range(patience - 1):
        book.check_patience(group)
    with pytest.raises(
        RunFailed,
        match=rf"^{patience} groups in a row were filtered and none was kept: .* same reward \(those of the last group "
        r"0\).* too easy or all too hard",
    ):
        book.check_patience(group)


def test_one_group_that_is_kept_starts_the_count_anew() -> None:
    book = a_filter(filter_patience=3)
    for _ in range(5):
        for group in filtered(book, a_group(1.0, 1.0), a_group(0.0, 0.0)):
            book.check_patience(group)
        assert not filtered(book, a_group(0.0, 1.0))


def test_each_step_says_how_many_were_filtered_since_the_batch_before() -> None:
    book = a_filter()
    for step in (0, 2, 2):
        book.dropped(ZERO_VARIANCE, step)
    book.dropped("reward: hung", 1)

    assert book.metrics(0) == {"filtered_groups": 1.0, "filtered_share": pytest.approx(1 / 3)}
    assert book.metrics(1) == {"filtered_groups": 0.0, "filtered_share": 0.0}
    assert book.metrics(2) == {"filtered_groups": 2.0, "filtered_share": 0.5}

    book.forget(0)
    assert book.metrics(0)["filtered_groups"] == 0.0
    assert book.metrics(2)["filtered_groups"] == 2.0


# ── among the other rules ───────────────────────────────────────────────────────────────────

FILTERED = a_config(run={"steps": 2}, schedule={"groups_per_step": 1, "group_size": 2, "filter": "zero_variance"})


def a_run(config: Config, verdict: Callable[[Unit], float]) -> Cluster:
    cluster = Cluster(config)
    cluster.start_trainer()
    cluster.start_rollout("a")
    node = Reward("r", 9, verdict=verdict)
    cluster.nodes[node.peer] = node
    cluster.settle()
    return cluster


def of(cluster: Cluster, kind: type[Any]) -> list[Any]:
    return [record for record in cluster.records if isinstance(record, kind)]


def test_for_each_filtered_group_exactly_one_more_is_admitted() -> None:
    cluster = a_run(FILTERED, told_apart)

    assert cluster.scheduler.is_finished
    assert of(cluster, Dropped) == [Dropped(0, ZERO_VARIANCE, 16)], "every third group is filtered: 0, 3, ..."
    assert [record.group_id for record in of(cluster, Admitted)] == [0, 1, 2]
    assert [record.group_ids for record in of(cluster, Taken)] == [[1], [2]]
    assert [event.fields for event in cluster.events if event.kind == "group.dropped"] == [
        {"group_id": 0, "reason": ZERO_VARIANCE}
    ]
    assert cluster.scheduler.window.num_open == 0
    assert [cluster.scheduler.training.filtering.metrics(step)["filtered_groups"] for step in (0, 1)] == [1.0, 0.0]


def test_the_last_reward_of_a_group_is_recorded_before_its_drop() -> None:
    kinds = [type(record) for record in a_run(FILTERED, told_apart).records]

    assert kinds[kinds.index(Dropped) - 1] is Rewarded


def test_a_run_in_which_all_groups_are_filtered_ends_and_says_why() -> None:
    config = structs.replace(FILTERED, schedule=structs.replace(FILTERED.schedule, filter_patience=5))

    cluster = a_run(config, right)

    assert cluster.cause.startswith("5 groups in a row were filtered and none was kept")
    cluster.commit()
    assert len(of(cluster, Dropped)) == 5, "what was decided before is on record"


def test_filtered_groups_are_no_failures_however_many() -> None:
    config = structs.replace(FILTERED, schedule=structs.replace(FILTERED.schedule, filter_patience=3 * LEAST_IN_A_ROW))

    cluster = a_run(config, lambda unit: float(unit.index > 0 or unit.group_id < 2 * LEAST_IN_A_ROW))

    assert cluster.scheduler.is_finished
    assert len(of(cluster, Dropped)) == 2 * LEAST_IN_A_ROW


# ── test trimming ─────────────────────────────────────────────────────────────────────────────
# Each spool keeps the segments with payloads that are still needed, by its own numbers.

SUMMARY = TrajectorySummary(8, 4, 0, 0, 1, "stop")


def stored(*places: tuple[str, int]) -> Group:
    """A group with a trajectory at each place: spool and segment."""
    group = Group(0, Prompt(), len(places), min_version=0)
    for slot, (spool, segment) in zip(group.slots, places, strict=True):
        slot.store(SpoolRef(spool, segment, 16, 8, 0), SUMMARY)
    return group


def test_the_oldest_needed_segment_of_each_spool_stays() -> None:
    done = [stored(("a", 1), ("b", 40))]
    needed = [stored(("a", 3), ("b", 41)), stored(("a", 2), ("b", 42))]
    assert first_needed(done, needed) == {"a": 2, "b": 41}


def test_a_spool_without_needed_payloads_keeps_its_newest_segment_of_those_done() -> None:
    assert first_needed([stored(("a", 1), ("a", 5))], [stored(("b", 7))]) == {"a": 5, "b": 7}


def test_trajectories_without_a_stored_part_need_nothing() -> None:
    assert first_needed([], [Group(0, Prompt(), 2, min_version=0)]) == {}
