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
"""Most times that one side may be as long as the other; transformers refuses the rest too."""


def resized_to(width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """
    Width and height to which a picture is resized, multiples of ``factor``.

    Raises `DataError` if a side is under 1 pixel, or `MAX_ASPECT` times shorter than the other.
    """
    if min(width, height) < 1 or max(width, height) > MAX_ASPECT * min(width, height):
        raise DataError(
            f"a picture of {width} x {height} pixels cannot be cut into patches: expected sides of at least 1, of "
            f"which none is over {MAX_ASPECT} times the other"
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

    The patches that merge into one token are adjacent: rows of blocks, blocks, rows of a block, patches. The picture is
    repeated ``temporal`` times, a still film.
    """
    channels, height, width = values.shape
    blocks = values.reshape(channels, height // (merge * patch), merge, patch, width // (merge * patch), merge, patch)
    ordered = blocks.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    film = np.broadcast_to(ordered, (*ordered.shape[:5], temporal, patch, patch))
    return film.reshape(height * width // patch**2, channels * temporal * patch**2)
