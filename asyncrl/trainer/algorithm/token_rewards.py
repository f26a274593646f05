"""
Rewards of an episode, token by token, for estimators with a return to go.

    turns     ▁▁▁▁▁ ▁▁▁ ▁▁▁▁▁▁        rewards of the turns .5, 0, .2; verdict 1
    tokens    ....5 ..0 .....5        each at the end of its turn, and what the verdict has besides at the end of all
"""

import numpy as np
from numpy.typing import NDArray

from asyncrl.trainer.packing.branches import turns_of
from asyncrl.trainer.packing.trajectory import TrainingTrajectory


def token_rewards(trajectory: TrainingTrajectory) -> NDArray[np.float32]:
    """
    [T] rewards, whose sum is the verdict.

    A turn of which nothing is trained gives its reward to the last trained token before it. If there is none, nothing
    that is trained has earned it, and it is left out.
    """
    rewards = np.zeros(len(trajectory.completion_ids))
    num_written, rest = 0, trajectory.reward
    for turn in turns_of(trajectory):
        num_written += turn.num_written
        rest -= turn.reward
        if num_written:
            rewards[num_written - 1] += turn.reward
    if num_written:
        rewards[-1] += rest
    return rewards.astype(np.float32)
