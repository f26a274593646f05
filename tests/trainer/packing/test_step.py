import numpy as np
import pytest

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError
from asyncrl.trainer.packing.batch import TrainingTrajectory
from asyncrl.trainer.packing.micro_batches import Size
from asyncrl.trainer.packing.step import Step, TrajectoryInfo, local_step


def step(*group_ids: int) -> Step:
    infos = [TrajectoryInfo(i, 2, Outcome(group_id=group, length=3, reward=0.0)) for i, group in enumerate(group_ids)]
    return Step(infos, {}, [0] * len(infos))


def test_mini_batches_are_whole_groups_as_equal_as_can_be() -> None:
    five = step(7, 7, 3, 3, 9, 9, 1, 1, 4)
    assert five.mini_batches(1) == [list(range(9))]
    assert five.mini_batches(2) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert five.mini_batches(99) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]], "no more than there are groups"


@pytest.mark.parametrize("group_ids", [(), (1, 2, 1)], ids=["none", "scattered"])
def test_anything_but_whole_groups_is_refused(group_ids):
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        step(*group_ids)


def test_a_step_of_samples_has_all_of_their_tokens() -> None:
    ids = np.arange(4, dtype=np.int32)
    trajectory = TrainingTrajectory(5, ids[:1], ids, np.zeros(4, np.float32), 0.5, index=2, metrics={"form": 0.1})
    made = local_step([trajectory])

    assert (made.infos[0].index, made.infos[0].size) == (2, Size(5, prompt=1, completion=4))
    assert (made.outcomes[0].group_id, made.outcomes[0].reward, made.outcomes[0].metrics) == (5, 0.5, {"form": 0.1})
    assert made.trajectories == {0: trajectory}
    assert made.owners == [0]
