import numpy as np

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.trainer.packing.branches import branches, turns_of
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from tests.trainer.episode_trajectories import episode

#   prompt 5 6 ── 0: [1] 2 3 ─┬─ 1: [4] 5          3: [7 8] 9, after nothing
#                             └─ 2: [] 6 7
TREE = episode([(-1, [1], [2, 3]), (0, [4], [5]), (0, [], [6, 7]), (-2, [7, 8], [9])])


def test_a_branch_is_all_that_was_read_up_to_the_last_token_that_was_written() -> None:
    found = list(branches(TREE))
    assert [branch.read.tolist() for branch in found] == [[5, 6, 1, 2, 3, 4], [5, 6, 1, 2, 3, 6], [7, 8]]
    assert [branch.root for branch in found] == [FROM_PROMPT, FROM_PROMPT, FROM_NOTHING]


def test_each_turn_begins_once_behind_what_it_read() -> None:
    assert [dict(branch.starts) for branch in branches(TREE)] == [{0: 3, 1: 6}, {2: 5}, {3: 2}]


def test_a_completion_is_one_turn_after_its_prompt() -> None:
    plain = TrainingTrajectory(
        7, np.array([5, 6], np.int32), np.array([1, 2], np.int32), np.zeros(2, np.float32), reward=0.0
    )
    (turn,) = turns_of(plain)
    assert (turn.parent, turn.num_context, turn.num_written) == (FROM_PROMPT, 0, 2)
    (branch,) = branches(plain)
    assert (branch.read.tolist(), dict(branch.starts)) == ([5, 6, 1], {0: 2})


def test_nothing_is_read_behind_the_last_token_that_was_written() -> None:
    ends_with_context = episode([(-1, [1], [2]), (0, [3, 4], []), (0, [8], [9])])
    assert [branch.read.tolist() for branch in branches(ends_with_context)] == [[5, 6, 1], [5, 6, 1, 2, 8]]


def test_a_branch_that_writes_nothing_new_is_left_out() -> None:
    ends_with_context = episode([(-1, [1], [2]), (0, [8], [9]), (0, [3, 4], [])])
    assert [branch.read.tolist() for branch in branches(ends_with_context)] == [[5, 6, 1, 2, 8]]
