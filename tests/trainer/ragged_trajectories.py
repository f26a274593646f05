"""Ragged trajectories near a uniform policy; every third group has equal rewards."""

import numpy as np

from asyncrl.trainer.packing.batch import TrainingTrajectory

VOCAB = 32


def ragged_trajectories(num_groups: int = 6, group_size: int = 4, seed: int = 0) -> list[TrainingTrajectory]:
    random = np.random.default_rng(seed)
    trajectories = []
    for group_id in range(num_groups):
        prompt = random.integers(0, VOCAB, random.integers(1, 9)).astype(np.int32)
        for index in range(group_size):
            length = int(random.integers(1, 20))
            trajectories.append(
                TrainingTrajectory(
                    group_id=group_id,
                    prompt_ids=prompt,
                    completion_ids=random.integers(0, VOCAB, length).astype(np.int32),
                    behavior_logprobs=random.normal(-3.4, 0.6, length).astype(np.float32),
                    reward=1.0 if group_id % 3 == 2 else float(index % 2) + 0.1 * index,
                    index=index,
                    metrics={"accuracy": float(index % 2), "form": 0.1 * index},
                )
            )
    return trajectories
