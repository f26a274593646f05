"""Pixels and grids against transformers' processor for machines without torchvision."""

from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from asyncrl.errors import DataError
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import draw_picture, make_model

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
