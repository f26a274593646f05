"""Groups without a learning signal are filtered; a run in which all are filtered ends."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from asyncrl.broker.groups.drop_limit import LEAST_IN_A_ROW
from asyncrl.broker.groups.filtering import LEAST_PATIENCE, ZERO_VARIANCE, GroupFilter
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.records import Admitted, Dropped, Rewarded, Taken
from asyncrl.config.config import Config
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import RunFailed
from asyncrl.messages.trajectory import Prompt, Unit
from tests.broker.driver import Cluster, Reward, a_config, right, told_apart

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
