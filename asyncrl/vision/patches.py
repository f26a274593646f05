"""
Arithmetic of pictures cut into patches, as Qwen-VL models read them.

    W x H ─ resized_to ─▶ multiples of patch * merge ─▶ grid (t, h, w) patches ─▶ h * w / merge² tokens

Both sides become multiples of a merged patch's side, with the picture's shape kept as closely as that allows and its
area within limits. Source: Wang et al. 2024, arXiv:2409.12191, "Naive Dynamic Resolution".
"""

import math

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import DataError

MAX_ASPECT = 200
"""Largest ratio of a picture's longer side to its shorter one, as in transformers."""


def resized_to(width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """
    Width and height to which a picture is resized, multiples of ``factor``.

    Raises `DataError` if a side has no pixel, or the longer one is over `MAX_ASPECT` times the shorter.
    """
    if min(width, height) < 1 or max(width, height) > MAX_ASPECT * min(width, height):
        raise DataError(
            f"a picture of {width} x {height} pixels cannot be cut into patches: expected sides of at least 1 pixel, "
            f"the longer at most {MAX_ASPECT} times the shorter; replace or crop the picture"
        )
    rounded = factor * round(width / factor), factor * round(height / factor)
    area = rounded[0] * rounded[1]
    if area > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        width, height = (max(factor, factor * math.floor(side / shrink / factor)) for side in (width, height))
        return width, height
    if area < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        width, height = (factor * math.ceil(side * grow / factor) for side in (width, height))
        return width, height
    return rounded


def cut(values: NDArray[np.float32], *, patch: int, merge: int, temporal: int) -> NDArray[np.float32]:
    """
    Patches of [C, H, W] colours: [H * W / patch², C * temporal * patch²].

    The ``merge`` x ``merge`` patches of one token are adjacent in the result. The picture is repeated ``temporal``
    times, because the model reads it as a video of equal frames.
    """
    channels, height, width = values.shape
    blocks = values.reshape(channels, height // (merge * patch), merge, patch, width // (merge * patch), merge, patch)
    ordered = blocks.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    film = np.broadcast_to(ordered, (*ordered.shape[:5], temporal, patch, patch))
    return film.reshape(height * width // patch**2, channels * temporal * patch**2)
