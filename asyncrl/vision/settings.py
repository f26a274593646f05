"""
Settings of a model that reads pictures, from the files of its directory.

    config.json ────────────────────▶ token ids, and how its vision tower cuts a picture
    processor_config.json, or
    preprocessor_config.json ───────▶ limits of a picture's area, colours, resampling

processor_config.json is preferred if both exist, as in transformers.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from asyncrl.config.model.weights import CONFIG, read_config
from asyncrl.errors import ConfigError
from asyncrl.files.foreign import read_json, within

T = TypeVar("T")

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""Values of ``model_type`` for which pictures are supported."""
NESTED, FLAT = "processor_config.json", "preprocessor_config.json"
PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of colours in CLIP's training data (Radford et al. 2021, arXiv:2103.00020)."""


class PictureSize(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a resized picture's area in pixels; the last two are older names of the edges."""

    shortest_edge: int | None = None
    longest_edge: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


class Processing(Struct, frozen=True):
    """Treatment of a picture before it is cut; the defaults are those of transformers' Qwen2-VL processor."""

    image_processor_type: str = PROCESSORS[0]
    size: PictureSize = field(default_factory=PictureSize)
    min_pixels: int | None = None
    """Overrides the limit in ``size``; so does `max_pixels`."""
    max_pixels: int | None = None
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    resample: int = 3
    """Number of pillow's filter; 3 is bicubic."""
    rescale_factor: float = 1 / 255
    image_mean: tuple[float, float, float] = CLIP_MEAN
    image_std: tuple[float, float, float] = CLIP_STD
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True
    do_convert_rgb: bool = True

    @property
    def limits(self) -> tuple[int, int]:
        """Least and most pixels of a resized picture."""
        size = self.size
        least = self.min_pixels or size.shortest_edge or size.min_pixels or 56 * 56
        return least, self.max_pixels or size.longest_edge or size.max_pixels or 28 * 28 * 1280


class _Vision(Struct, frozen=True):
    patch_size: int = 14
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2


class ModelConfig(Struct, frozen=True):
    """Fields of ``config.json`` about pictures: special token ids and the patches of the vision tower."""

    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    vision_token_id: int = -1
    """Padding token that only Qwen2.5-VL has; -1 without one."""
    vision_config: _Vision = field(default_factory=_Vision)


def read_settings(model: Path) -> tuple[ModelConfig, Processing] | None:
    """
    Settings of a model directory; None if its ``model_type`` is none of `FAMILIES`.

    Raises `ConfigError` if a file is missing, has invalid values, or asks for what is not supported.
    """
    found = read_config(model)
    if found.get("model_type") not in FAMILIES:
        return None
    config = _convert(found, ModelConfig, model / CONFIG)
    path, fields = _processing(model)
    processing = _convert(fields, Processing, path)
    _check(processing, config.vision_config, path)
    return config, processing


def _processing(model: Path) -> tuple[Path, dict[str, Any]]:
    """File with the image processor's settings, and their values; nulls are left out."""
    nested = _read(model, NESTED).get("image_processor") if (model / NESTED).exists() else None
    path = model / (NESTED if nested else FLAT)
    if not path.exists():
        raise ConfigError(
            f"{model} has a model that reads pictures, but neither {FLAT} nor {NESTED} with `image_processor` in it; "
            f"copy it from the model's origin"
        )
    fields = _convert(nested or _read(model, FLAT), dict[str, Any], path)
    return path, {name: value for name, value in fields.items() if value is not None}


def _read(model: Path, name: str) -> dict[str, Any]:
    return read_json(within(model, name), dict[str, Any], remedy="copy it from the model's origin")


def _convert(found: Any, kind: type[T], path: Path) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path} has an invalid setting for pictures: {error}; copy the file from the model's origin"
        ) from error


def _check(processing: Processing, vision: _Vision, path: Path) -> None:
    if processing.image_processor_type not in PROCESSORS:
        raise ConfigError(
            f"{path} names the image processor {processing.image_processor_type!r}, which is not supported: expected "
            f"{PROCESSORS[0]!r}; use a model with this processor"
        )
    steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
    if off := next((step for step in steps if not getattr(processing, step)), ""):
        raise ConfigError(f"{path} has {off} = false, which is not supported; remove it")
    cut = (processing.patch_size, processing.temporal_patch_size, processing.merge_size)
    expected = (vision.patch_size, vision.temporal_patch_size, vision.spatial_merge_size)
    if cut != expected:
        raise ConfigError(
            f"{path} cuts pictures into patches of {cut} (patch_size, temporal_patch_size, merge_size), but the model "
            f"in {CONFIG} reads {expected}; make them agree"
        )
    least, most = processing.limits
    if not 0 < least <= most or processing.patch_size < 1 or not 0 <= processing.resample <= 5:
        raise ConfigError(
            f"{path} has limits of {least} to {most} pixels, patch_size {processing.patch_size} and resample "
            f"{processing.resample}: expected 0 < least <= most, a positive patch_size and resample from 0 to 5; "
            f"correct the file"
        )
