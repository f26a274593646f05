import numpy as np
import pytest
import torch

from asyncrl.errors import AsyncrlError
from asyncrl.trainer.batch import TrainingSample, collate

CPU = torch.device("cpu")


def sample(prompt: list[int], completion: list[int], logprobs: list[float]) -> TrainingSample:
    arrays = np.array(prompt, np.int32), np.array(completion, np.int32), np.array(logprobs, np.float32)
    return TrainingSample(7, *arrays, reward=1.0)


def test_states_before_each_completion_token_are_gathered() -> None:
    first, second = sample([5, 6], [7, 8, 9], [-1.0, -2.0, -3.0]), sample([4], [3], [-0.5])
    batch = collate([first, second], [1.0, -1.0], [0.25, 0.5], device=CPU)

    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]
    assert batch.positions.tolist() == [1, 2, 3, 5]
    assert batch.token_ids.tolist() == [7, 8, 9, 3]
    assert batch.behavior_logprobs.tolist() == [-1.0, -2.0, -3.0, -0.5]
    assert batch.advantages.tolist() == [1.0, 1.0, 1.0, -1.0]
    assert batch.weights.tolist() == [0.25, 0.25, 0.25, 0.5]


def test_a_trajectory_without_tokens_takes_a_row_and_no_state() -> None:
    batch = collate([sample([1, 2], [], [])], [1.0], [1.0], device=CPU)
    assert batch.input_ids.tolist() == [[1, 2]]
    assert batch.positions.tolist() == []


@pytest.mark.parametrize(
    ("prompt", "completion", "logprobs"),
    [
        pytest.param([], [1], [-1.0], id="nothing predicts the first token"),
        pytest.param([1], [1, 2], [-1.0], id="a token without a log-prob"),
    ],
)
def test_a_trajectory_that_does_not_hold_together_is_refused(prompt, completion, logprobs) -> None:
    with pytest.raises(AsyncrlError, match="group 7 does not hold together"):
        sample(prompt, completion, logprobs)
