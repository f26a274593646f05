from dataclasses import replace

import numpy as np
import pytest

from asyncrl.errors import AsyncrlError
from asyncrl.messages.trajectory import Turn
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from tests.trainer.episode_trajectories import episode


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
