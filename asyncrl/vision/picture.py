"""
Decoding of pictures with limits, because a file of a dataset may be damaged or made to exhaust the memory.

The limit is compared with the size in the file's header, before a pixel is decoded. A rotation noted in a photograph's
EXIF is not applied: the picture is read as it is stored.
"""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from asyncrl.errors import DataError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded. A file with several pictures is read as its first."""
MAX_PIXELS = 64 * 2**20
"""Most pixels of a picture, 8192 x 8192: 200 MB decoded. A model reads at most a quarter of them."""


def picture_size(content: bytes) -> tuple[int, int]:
    """Width and height of a file's picture, pixels, by its header. Raises `DataError` as `decode`."""
    with _opened(content) as picture:
        return picture.size


def decode(content: bytes) -> Image.Image:
    """Picture of a file in RGB. Raises `DataError` if it is damaged, of another format, or has over `MAX_PIXELS`."""
    with _opened(content) as picture:
        try:
            return picture.convert("RGB")
        except Exception as error:  # a damaged file may raise anything
            raise DataError(f"a picture is damaged: {_in_words(error)}; replace the file") from error


def rgb(picture: Image.Image) -> NDArray[np.uint8]:
    """Colours of a picture, [H, W, 3] uint8."""
    return np.asarray(picture, dtype=np.uint8)


def _opened(content: bytes) -> Image.Image:
    """Read the header of a file. Raises `DataError` if it is not a picture, or has over `MAX_PIXELS`."""
    try:
        picture = Image.open(BytesIO(content), formats=FORMATS)
    # pillow has a limit of its own, and only warns below twice that: here both are the same error.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"a picture is too large: {_in_words(error)}; the limit is {MAX_PIXELS:,} pixels") from error
    except Exception as error:  # a damaged file may raise anything
        raise DataError(
            f"a picture of {len(content):,} bytes cannot be read: {_in_words(error)}; expected a file in "
            f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        ) from error
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise DataError(
            f"a picture is too large: {width} x {height} is {width * height:,} pixels, the limit is {MAX_PIXELS:,}; "
            f"make it smaller"
        )
    return picture


def _in_words(error: Exception) -> str:
    """Message of pillow's error without the address of the buffer that it names."""
    return str(error).partition(" <_io.BytesIO")[0] or type(error).__name__
