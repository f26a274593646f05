"""
Pictures as a model reads them: from files to patches, and from sizes to numbers of tokens.

    bytes ─ decode ─▶ RGB ─ resize ─▶ multiples of a merged patch ─ normalise, cut ─▶ Pixels

The pixels are bit-equal to those of transformers' `Qwen2VLImageProcessorPil`. Sampler and trainer each read the files
with this class, so only files are sent, never pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from inspect import signature
from pathlib import Path

import numpy as np
import PIL
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from asyncrl.errors import ConfigError, DataError
from asyncrl.vision import positions
from asyncrl.vision.picture import decode
from asyncrl.vision.positions import Grid
from asyncrl.vision.settings import ModelConfig, Processing, read_settings

# ── patches ───────────────────────────────────────────────────────────────────────────────────
# Arithmetic of pictures cut into patches, as Qwen-VL models read them.
#
#     W x H ─ resized_to ─▶ multiples of patch * merge ─▶ grid (t, h, w) patches ─▶ h * w / merge² tokens
#
# Both sides become multiples of a merged patch's side, with the picture's shape kept as closely as that allows and
# its area within limits. Source: Wang et al. 2024, arXiv:2409.12191, "Naive Dynamic Resolution".

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


# ── processor ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Pixels:
    """Patches of one or more pictures, in order."""

    values: Tensor
    """[sum of t * h * w, C * T * P * P] float32: channels, frames and pixels of each patch."""
    grids: list[Grid]
    """Numbers of each picture's patches along time, height and width."""


class ImageProcessor:
    """Image processor of a model: cuts pictures into patches and counts their tokens. `load` makes one."""

    def __init__(self, config: ModelConfig, processing: Processing) -> None:
        self._processing = processing
        # Rounded twice, as transformers does.
        scaled = (np.arange(256, dtype=np.float64) * processing.rescale_factor).astype(np.float32)
        mean, std = (np.array(of, dtype=np.float32)[:, None] for of in (processing.image_mean, processing.image_std))
        self._colours: NDArray[np.float32] = (scaled - mean) / std
        """[3, 256] normalised value of each byte in each channel."""
        self.merge_size: int = processing.merge_size
        """Patches along each side of an image token."""
        self.image_token_id: int = config.image_token_id
        """Id of the image token, which stands for one part of a picture."""
        self.placeholder_ids = (config.vision_start_token_id, config.image_token_id, config.vision_end_token_id)
        """Ids that stand for a picture in collapsed plain text: vision start, image, vision end."""
        others = {config.video_token_id, config.vision_token_id}
        self.vision_token_ids: frozenset[int] = frozenset({*self.placeholder_ids, *others} - {-1})
        """Ids that engines must not sample, because a forward pass expects a picture at each of them."""
        least, most = processing.limits
        self.version: str = (
            f"pillow {PIL.__version__}, {least} to {most} pixels, patches of {processing.patch_size} merged by "
            f"{processing.merge_size}, filter {processing.resample}"
        )
        """Version and settings on which pixels and grids depend; error messages compare two processors by it."""

    @classmethod
    def load(cls, model_path: Path) -> "ImageProcessor | None":
        """
        Read the settings of a model directory; None if the model reads no pictures.

        Raises `ConfigError` if the model reads pictures and a file is missing or invalid.
        """
        settings = read_settings(model_path)
        return cls(*settings) if settings else None

    def grid(self, width: int, height: int) -> Grid:
        """Grid of a picture of ``width`` x ``height`` pixels. Raises `DataError` if `resized_to` refuses the size."""
        return self._cut_grid(*self._resized_to(width, height))

    def num_tokens(self, grid: Grid) -> int:
        """Number of image tokens of a picture."""
        return positions.num_tokens(grid, self.merge_size)

    def pixels(self, files: Sequence[bytes]) -> Pixels:
        """Decode and cut pictures. Raises `DataError` naming the picture if one is damaged or too large."""
        pictures, sizes = self.resized(files), self._processing
        none = np.empty((0, 3 * sizes.temporal_patch_size * sizes.patch_size**2), dtype=np.float32)
        values = np.concatenate([none, *map(self._patches, pictures)])
        return Pixels(torch.from_numpy(values), [self._cut_grid(*picture.size) for picture in pictures])

    def resized(self, files: Sequence[bytes]) -> list[Image.Image]:
        """Pictures in RGB, resized as `pixels` cuts them. Raises `DataError` as `pixels`."""
        return [self._resized(file, f"picture {place} of {len(files)}") for place, file in enumerate(files, 1)]

    def positions(self, prompt_ids: ArrayLike, grids: Sequence[Grid]) -> tuple[NDArray[np.int64], int]:
        """Rotary positions of expanded ids; see `mrope_positions`."""
        return positions.mrope_positions(
            prompt_ids, grids, image_token_id=self.image_token_id, merge_size=self.merge_size
        )

    def _resized_to(self, width: int, height: int) -> tuple[int, int]:
        least, most = self._processing.limits
        factor = self._processing.patch_size * self.merge_size
        return resized_to(width, height, factor=factor, min_pixels=least, max_pixels=most)

    def _cut_grid(self, width: int, height: int) -> Grid:
        """Grid of a resized picture."""
        return 1, height // self._processing.patch_size, width // self._processing.patch_size

    def _resized(self, file: bytes, name: str) -> Image.Image:
        try:
            picture = decode(file)
            size = self._resized_to(*picture.size)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        return picture.resize(size, resample=Image.Resampling(self._processing.resample))

    def _patches(self, picture: Image.Image) -> NDArray[np.float32]:
        values = self._colours[np.arange(3)[:, None, None], np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1)]
        sizes = self._processing
        return cut(values, patch=sizes.patch_size, merge=self.merge_size, temporal=sizes.temporal_patch_size)


# ── encoded ───────────────────────────────────────────────────────────────────────────────────
# Pictures that a vision tower has encoded, as an argument of transformers' models.

ENCODED = "mm_encoder_outputs"
"""Argument of a model's forward pass, since transformers 5.18. Before, models accept it and ignore it."""


def takes_encoded(model: type) -> bool:
    """True if a class of transformers takes pictures that are encoded."""
    return ENCODED in signature(model.forward).parameters  # type: ignore[attr-defined]  # all have it


def require_encoded(model: type, source: str) -> None:
    """Raise `ConfigError` if the class of a model, named by ``source``, takes no pictures that are encoded."""
    if not takes_encoded(model):
        raise ConfigError(
            f"{source} reads pictures, which {model.__name__} of transformers {version('transformers')} does not take "
            f"encoded ({ENCODED!r}); install transformers 5.18 or newer, or use a model of text alone"
        )
