from dataclasses import replace

import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError
from asyncrl.messages.trajectory import Turn
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, TrajectoryInfo, TrajectorySize, local_step
from asyncrl.trainer.ranks.ranks import SequenceGroup, SingleRank
from tests.trainer.episode_trajectories import episode


def step(*group_ids: int) -> TrainingStep:
    infos = [TrajectoryInfo(i, 2, Outcome(group_id=group, length=3, reward=0.0)) for i, group in enumerate(group_ids)]
    return TrainingStep(infos, {}, [0] * len(infos))


def test_mini_batches_are_whole_groups_as_equal_as_can_be() -> None:
    five = step(7, 7, 3, 3, 9, 9, 1, 1, 4)
    assert five.mini_batches(1) == [list(range(9))]
    assert five.mini_batches(2) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert five.mini_batches(99) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]], "no more than there are groups"


def test_scattered_groups_are_refused():
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        step(1, 2, 1)


def test_a_step_of_no_samples_is_refused():
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        local_step([])


def test_a_step_without_some_groups_keeps_the_tokens_and_ranks_of_the_others():
    ids = np.arange(4, dtype=np.int32)
    tokens = {place: TrainingTrajectory(place, ids[:1], ids, np.zeros(4, np.float32), 0.5) for place in (0, 2, 4)}
    whole = replace(step(7, 7, 3, 3, 9, 9), trajectories=tokens, owners=[0, 1, 0, 1, 0, 1])

    rest = whole.without([3])

    assert [outcome.group_id for outcome in rest.outcomes] == [7, 7, 9, 9]
    assert {place: one.group_id for place, one in rest.trajectories.items()} == {0: 0, 2: 4}
    assert rest.owners == [0, 1, 0, 1]
    assert whole.without([]) is whole
    assert whole.without([7, 3, 9]).infos == []


class Fourth(SingleRank):
    """The last of four ranks, of which two each share a row."""

    rank, size, sequence = 3, 4, SequenceGroup(2, 1)


def test_ranks_that_share_a_row_have_the_same_micro_batches_with_the_tokens_of_both() -> None:
    whole = replace(step(7, 7, 3, 3), owners=[2, 2, 0, 2])  # each has 2 + 3 tokens
    assert whole.micro_batches(range(4), Fourth(), 5) == [[0, 1], [3]]
    assert whole.micro_batches(range(4), Fourth(), 3) == [[0], [1], [3]]


def test_a_step_of_samples_has_all_of_their_tokens() -> None:
    ids = np.arange(4, dtype=np.int32)
    trajectory = TrainingTrajectory(5, ids[:1], ids, np.zeros(4, np.float32), 0.5, index=2, metrics={"form": 0.1})
    made = local_step([trajectory])

    assert (made.infos[0].index, made.infos[0].size) == (2, TrajectorySize(5, prompt=1, completion=4))
    assert (made.outcomes[0].group_id, made.outcomes[0].reward, made.outcomes[0].metrics) == (5, 0.5, {"form": 0.1})
    assert made.trajectories == {0: trajectory}
    assert made.owners == [0]


# ── test trajectory ───────────────────────────────────────────────────────────────────────────


def trajectory(prompt: list[int], completion: list[int], logprobs: list[float]) -> TrainingTrajectory:
    arrays = np.array(prompt, np.int32), np.array(completion, np.int32), np.array(logprobs, np.float32)
    return TrainingTrajectory(7, *arrays, reward=1.0)


@pytest.mark.parametrize(
    ("prompt", "completion", "logprobs"),
    [
        pytest.param([], [1], [-1.0], id="nothing predicts the first token"),
        pytest.param([1], [1, 2], [-1.0], id="a token without a log-prob"),
    ],
)
def test_a_trajectory_that_does_not_hold_together_is_refused(prompt, completion, logprobs):
    with pytest.raises(AsyncrlError, match="group 7 is inconsistent"):
        trajectory(prompt, completion, logprobs)


def test_masks_or_experts_of_other_tokens_are_refused() -> None:
    whole = trajectory([5, 6], [7, 8, 9], [-1.0] * 3)
    with pytest.raises(
        AsyncrlError, match=r"group 7 has 2 sampling masks of 3 ids for 3 completion tokens, but 3 mask"
    ):
        replace(whole, mask_counts=np.array([1, 2], np.int32), mask_ids=np.array([7, 8, 9], np.int32))
    with pytest.raises(AsyncrlError, match=r"group 7 has experts of 5 tokens, expected those of all 4 but the last"):
        replace(whole, experts=np.zeros((5, 1, 2), np.uint8))


def test_turns_of_other_tokens_are_refused() -> None:
    whole = episode([(-1, [1], [2, 3]), (0, [4], [5])])
    with pytest.raises(
        AsyncrlError, match=r"group 7 has turns of 2 tokens of context and 2 written, but 2 and 3 tokens \(expected"
    ):
        replace(whole, turns=[Turn(-1, 1, 1), Turn(0, 1, 1)])
    with pytest.raises(AsyncrlError, match="0 tokens of context and 0 written, but 2 and 0 tokens"):
        replace(whole, turns=[])
