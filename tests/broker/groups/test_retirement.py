"""Prompts that the policy has learned are not admitted again."""

import pytest

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.retirement import Retirement, mean_correct
from asyncrl.errors import RunFailed
from asyncrl.messages.trajectory import Prompt


def a_group(row: int, *correct: float, num_greedy: int = 0) -> Group:
    group = Group(row, Prompt(text="?"), len(correct), min_version=0, num_greedy=num_greedy, row=row)
    for slot, value in zip(group.slots, correct, strict=True):
        slot.score(-1.0, {"correct": value})
    return group


def test_a_prompt_is_retired_when_enough_of_its_group_is_correct() -> None:
    retirement = Retirement(0.75, 3)

    retirement.completed(a_group(0, 1, 1, 1, 0))
    retirement.completed(a_group(1, 1, 1, 0, 0))

    assert (0 in retirement, 1 in retirement) == (True, False)


def test_greedy_trajectories_do_not_count_and_a_verdict_without_correct_counts_by_its_reward() -> None:
    assert mean_correct(a_group(0, 1, 0, 0, num_greedy=1)) == 0.5
    group = a_group(0, 0)
    group.slots[0].score(0.25, {})
    assert mean_correct(group) == 0.25


def test_with_0_no_prompt_is_retired() -> None:
    retirement = Retirement(0.0, 1)
    retirement.completed(a_group(0, 1, 1))
    assert 0 not in retirement
    retirement.require_any()


def test_without_a_prompt_left_the_run_fails_in_one_sentence() -> None:
    retirement = Retirement(0.5, 2)
    retirement.completed(a_group(0, 1))
    retirement.require_any()
    retirement.completed(a_group(1, 1))

    with pytest.raises(RunFailed, match=r"all 2 prompts of data.train are retired: of each, data.retire_at = 0.5 or"):
        retirement.require_any()


def test_news_are_told_once() -> None:
    retirement = Retirement(0.5, 9)
    assert retirement.news() == {}
    retirement.completed(a_group(0, 1))
    retirement.completed(a_group(0, 1))
    retirement.completed(a_group(1, 1))
    assert retirement.news() == {"retired": 2, "prompts": 9}
    assert retirement.news() == {}
