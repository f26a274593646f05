from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2VLImageProcessorPil, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from asyncrl.errors import ConfigError, DataError
from asyncrl.vision.processor import ImageProcessor, cut, require_encoded, resized_to, takes_encoded
from tests.conftest import draw_picture, make_model


class Older:
    def forward(self, input_ids, pixel_values=None, **kwargs): ...


class Newer:
    def forward(self, input_ids, pixel_values=None, mm_encoder_outputs=None, **kwargs): ...


def test_a_model_that_would_ignore_encoded_pictures_is_refused_by_what_it_takes():
    require_encoded(Newer, "model.path=here")
    with pytest.raises(ConfigError) as refused:
        require_encoded(Older, "model.path=here")
    assert str(refused.value) == (
        f"model.path=here reads pictures, which Older of transformers {version('transformers')} does not take encoded "
        f"('mm_encoder_outputs'); install transformers 5.18 or newer, or use a model of text alone"
    )


def test_transformers_takes_encoded_pictures_since_5_18():
    release = tuple(map(int, version("transformers").split(".")[:2]))
    assert takes_encoded(Qwen3VLForConditionalGeneration) == (release >= (5, 18))


# ── test patches ──────────────────────────────────────────────────────────────────────────────
# Sizes of pictures, and how they are cut, against transformers.

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


# ── test processor ────────────────────────────────────────────────────────────────────────────
# Pixels and grids against transformers' processor for machines without torchvision.

SIZES = [(24, 16), (48, 48), (5, 7), (100, 20), (31, 77), (640, 9), (300, 200)]


@pytest.fixture
def processor(vision_model: Path) -> ImageProcessor:
    return ImageProcessor.load(vision_model) or pytest.fail("reads no pictures")


@pytest.fixture
def theirs(vision_model: Path) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil.from_pretrained(vision_model)


def test_a_text_model_has_none(tmp_path: Path) -> None:
    make_model(tmp_path)
    assert ImageProcessor.load(tmp_path) is None


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP"])
def test_pixels_are_those_of_transformers_bit_by_bit(
    processor: ImageProcessor, theirs: Qwen2VLImageProcessorPil, file_format: str
) -> None:
    files = [draw_picture(*size, seed=seed, file_format=file_format) for seed, size in enumerate(SIZES)]
    found = processor.pixels(files)
    expected = theirs([Image.open(BytesIO(file)) for file in files], return_tensors="pt")
    assert found.values.dtype == torch.float32
    assert torch.equal(found.values, expected["pixel_values"])
    assert [list(grid) for grid in found.grids] == expected["image_grid_thw"].tolist()


def test_pixels_are_those_of_transformers_with_its_defaults(vision_model: Path, tmp_path: Path) -> None:
    config = (vision_model / "config.json").read_text().replace('"patch_size": 4', '"patch_size": 14')
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessorFast"}')
    processor = ImageProcessor.load(tmp_path) or pytest.fail("reads no pictures")
    file = draw_picture(90, 70)
    expected = Qwen2VLImageProcessorPil()([Image.open(BytesIO(file))], return_tensors="pt")
    assert torch.equal(processor.pixels([file]).values, expected["pixel_values"])


@pytest.mark.parametrize("size", SIZES)
def test_the_grid_follows_from_the_size_alone(processor: ImageProcessor, size: tuple[int, int]) -> None:
    found = processor.pixels([draw_picture(*size)])
    assert [processor.grid(*size)] == found.grids
    assert 4 * processor.num_tokens(found.grids[0]) == len(found.values)


def test_no_pictures_have_no_pixels(processor: ImageProcessor) -> None:
    found = processor.pixels([])
    assert found.values.shape == (0, 3 * 2 * 4 * 4)
    assert found.grids == []


def test_tokens_of_pictures_are_never_sampled(processor: ImageProcessor) -> None:
    assert processor.image_token_id in processor.vision_token_ids
    assert processor.vision_token_ids == {24, 25, 26, 27}


def test_the_damaged_picture_is_named(processor: ImageProcessor) -> None:
    with pytest.raises(DataError, match="picture 2 of 2: a picture of 5 bytes cannot be read"):
        processor.pixels([draw_picture(8, 8), b"hello"])


def test_a_picture_too_narrow_for_patches_is_named(processor: ImageProcessor) -> None:
    with pytest.raises(DataError, match="picture 1 of 1: a picture of 201 x 1 pixels cannot be cut"):
        processor.pixels([draw_picture(201, 1)])


def test_positions_are_those_of_the_models_sizes(processor: ImageProcessor) -> None:
    positions, delta = processor.positions([3, *[processor.image_token_id] * 6, 4], [(1, 4, 6)])
    assert positions.shape == (3, 8)
    assert delta == -3


def test_the_version_names_what_decides_about_grids(processor: ImageProcessor) -> None:
    assert "64 to 2304 pixels, patches of 4 merged by 2" in processor.version
