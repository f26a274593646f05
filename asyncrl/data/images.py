r"""
Pictures of a dataset's rows: the files that the image column holds or names, and a prompt's record of each.

    [{"bytes": b"\x89PNG...", "path": "11.png"}]      as verl and the hub write them
    [b"\x89PNG..."]     ["diagrams/11.png"]           files, or paths below the dataset's own folder (`ImageFiles`)

A single picture may stand without a list. Here only a file's header is read, for its size; engines and trainer decode
the pixels.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl.data.image_files import MAX_FILE_BYTES, ImageFiles, too_large
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.trajectory import IMAGE_MARK, Image
from asyncrl.vision.settings import FAMILIES, read_settings

Keep = Callable[[Image, bytes], None]
"""Function that stores a prompt's picture with its file."""


def keep_nothing(_image: Image, _content: bytes) -> None:
    """Ignore a picture; the `Keep` of a reader that needs prompts only."""


def read_files(value: Any, files: ImageFiles) -> list[bytes]:
    """Files of the pictures in a cell of the image column. Raises `DataError` if one of them cannot be read."""
    if value is None:
        return []
    return [_read_file(item, files) for item in (value if isinstance(value, list) else [value])]


def _read_file(item: Any, files: ImageFiles) -> bytes:
    content = (item.get("bytes") or item.get("path")) if isinstance(item, dict) else item
    if isinstance(content, str) and content:
        content = files.read(content)
    if not isinstance(content, bytes) or not content:
        raise DataError(f"a picture must be bytes or a path, or {{bytes, path}} with one of them, got {_kind(item)}")
    if len(content) > MAX_FILE_BYTES:
        raise DataError(too_large(f"a picture of {len(content):,} bytes"))
    return content


def describe(content: bytes) -> Image:
    """Digest and size of a picture. Raises `DataError` if it is invalid or too large, or pillow is not installed."""
    try:
        from asyncrl.vision.picture import picture_size  # noqa: PLC0415  only prompts with pictures need pillow
    except ModuleNotFoundError as error:
        raise DataError("it has pictures, but pillow is not installed: pip install 'asyncrl[vision]'") from error
    width, height = picture_size(content)
    return Image(hashlib.sha256(content).digest(), width, height, len(content))


def check_model_reads(model: Path, num_images: int, num_marked: int = 0) -> None:
    """
    Check that the pictures of a dataset and what the model reads agree.

    Args:
        num_images: Number of pictures.
        num_marked: Number of prompts with the mark of a picture and no picture.

    Raises:
        ConfigError: The model reads none of the pictures, lacks the settings to read them, or would read marks as text.
    """
    if num_marked and read_settings(model) is not None:
        raise ConfigError(
            f"{num_marked} prompts have the mark {IMAGE_MARK} and no picture, but the model {model} reads pictures; "
            f"name their column with data.image_column, or remove the mark"
        )
    if num_images and read_settings(model) is None:
        raise ConfigError(
            f"the prompts have {num_images} pictures, but the model {model} reads none; give model.path one of "
            f"{', '.join(FAMILIES)}, or remove the pictures and their marks from the dataset"
        )


def _kind(item: Any) -> str:
    if isinstance(item, dict):
        return f"a dict with {', '.join(map(str, item)) or 'nothing'}"
    return "null" if item is None else f"{type(item).__name__} {item!r:.40}"
