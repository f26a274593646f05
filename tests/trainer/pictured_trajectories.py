"""Ragged trajectories of prompts with pictures, for a model of `make_vision_model`."""

import hashlib

import numpy as np

from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.pictures import TrainingImage
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import WORDS, draw_picture

SIZES = [(24, 16), (16, 40), (8, 8), (33, 20)]
"""Width and height of the pictures, in pixels."""


def training_image(processor: ImageProcessor, number: int = 0) -> TrainingImage:
    """A picture of the `SIZES`, with colours of its own."""
    width, height = SIZES[number % len(SIZES)]
    content = draw_picture(width, height, number)
    return TrainingImage(hashlib.sha256(content).digest(), content, processor.grid(width, height))


def prompt_with(processor: ImageProcessor, images: list[TrainingImage], seed: int = 0) -> np.ndarray:
    """Text, and each picture with text after it."""
    random = np.random.default_rng(seed)
    start, pad, end = processor.placeholder_ids
    ids = [*random.integers(2, len(WORDS), 2)]
    for image in images:
        ids += [start, *[pad] * processor.num_tokens(image.grid), end, *random.integers(2, len(WORDS), 3)]
    return np.array(ids, np.int32)


def reader(policy: Policy) -> ImageProcessor:
    """The processor of a policy that reads pictures."""
    assert policy.processor is not None
    return policy.processor


def pictured_trajectories(
    processor: ImageProcessor, num_groups: int = 4, group_size: int = 3, seed: int = 0
) -> list[TrainingTrajectory]:
    """Groups with no picture, one, and two; the last picture of a group is the first of the next one."""
    random = np.random.default_rng(seed)
    trajectories = []
    for group_id in range(num_groups):
        images = [training_image(processor, group_id + place) for place in range(group_id % 3)]
        prompt = prompt_with(processor, images, group_id)
        for index in range(group_size):
            length = int(random.integers(1, 9))
            trajectories.append(
                TrainingTrajectory(
                    group_id=group_id,
                    prompt_ids=prompt,
                    completion_ids=random.integers(0, len(WORDS), length).astype(np.int32),
                    behavior_logprobs=random.normal(-3.4, 0.6, length).astype(np.float32),
                    reward=float(index % 2) + 0.1 * index,
                    index=index,
                    images=images,
                )
            )
    return trajectories
