"""Sizes of pictures, and how they are cut, against transformers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from asyncrl.errors import DataError
from asyncrl.vision.patches import cut, resized_to

SIDES = st.integers(1, 5000)


@given(SIDES, SIDES, st.sampled_from([8, 28, 32]), st.integers(1, 100), st.integers(0, 1000))
def test_sizes_are_those_of_transformers(width: int, height: int, factor: int, least: int, more: int) -> None:
    limits = {"factor": factor, "min_pixels": least * factor**2, "max_pixels": (least + more) * factor**2}
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(DataError, match="cannot be cut into patches"):
            resized_to(width, height, **limits)
    else:
        assert resized_to(width, height, **limits)[::-1] == smart_resize(height, width, **limits)


def test_a_picture_without_pixels_is_refused() -> None:
    with pytest.raises(DataError, match="0 x 5 pixels"):
        resized_to(0, 5, factor=8, min_pixels=64, max_pixels=640)


def test_patches_of_one_token_are_adjacent() -> None:
    values = np.arange(3 * 4 * 8, dtype=np.float32).reshape(3, 4, 8)  # two tokens of four patches of 2 x 2
    patches = cut(values, patch=2, merge=2, temporal=2)
    assert patches.shape == (8, 3 * 2 * 2 * 2)
    corners = [(0, 0), (0, 2), (2, 0), (2, 2), (0, 4), (0, 6), (2, 4), (2, 6)]
    assert [tuple(np.argwhere(values[0] == first)[0]) for first in patches[:, 0]] == corners


def test_both_frames_of_a_patch_are_the_picture() -> None:
    values = np.random.default_rng(0).random((3, 4, 4), dtype=np.float32)
    frames = cut(values, patch=4, merge=1, temporal=2).reshape(3, 2, 4, 4)
    assert np.array_equal(frames[:, 0], values)
    assert np.array_equal(frames[:, 1], values)
