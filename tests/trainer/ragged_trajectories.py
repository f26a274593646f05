"""Ragged trajectories near a uniform policy; every third group has equal rewards."""

import numpy as np
from numpy.typing import NDArray

from asyncrl.messages.trajectory import RouteShape
from asyncrl.trainer.packing.step import TrainingTrajectory

VOCAB = 32


def ragged_trajectories(
    num_groups: int = 6, group_size: int = 4, seed: int = 0, routes: RouteShape | None = None
) -> list[TrainingTrajectory]:
    """With ``routes``, each token has random experts of such a model; the first two of a group share their prompt's."""
    random = np.random.default_rng(seed)
    trajectories: list[TrainingTrajectory] = []
    for group_id in range(num_groups):
        prompt = random.integers(0, VOCAB, random.integers(1, 9)).astype(np.int32)
        for index in range(group_size):
            length = int(random.integers(1, 20))
            experts = None if routes is None else _experts(random, len(prompt) + length - 1, routes)
            if experts is not None and index == 1 and (first := trajectories[-1].experts) is not None:
                experts[: len(prompt)] = first[: len(prompt)]
            trajectories.append(
                TrainingTrajectory(
                    group_id=group_id,
                    prompt_ids=prompt,
                    completion_ids=random.integers(0, VOCAB, length).astype(np.int32),
                    behavior_logprobs=random.normal(-3.4, 0.6, length).astype(np.float32),
                    reward=1.0 if group_id % 3 == 2 else float(index % 2) + 0.1 * index,
                    index=index,
                    metrics={"accuracy": float(index % 2), "form": 0.1 * index},
                    experts=experts,
                )
            )
    return trajectories


def _experts(random: np.random.Generator, num_tokens: int, routes: RouteShape) -> NDArray[np.uint8]:
    choices = [random.permutation(routes.num_experts)[: routes.top_k] for _ in range(num_tokens * routes.layers)]
    return np.array(choices, np.uint8).reshape(num_tokens, routes.layers, routes.top_k)
