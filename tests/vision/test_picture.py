"""Files of pictures: formats, damage, and limits."""

import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from asyncrl.errors import DataError
from asyncrl.vision import picture
from asyncrl.vision.picture import decode, picture_size
from tests.conftest import draw_picture


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats_of_pictures_are_read_in_rgb(file_format: str) -> None:
    content = draw_picture(20, 12, file_format=file_format)
    assert picture_size(content) == (20, 12)
    assert np.asarray(decode(content)).shape == (12, 20, 3)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_pictures_of_other_colour_modes_become_rgb(mode: str) -> None:
    file = BytesIO()
    Image.new(mode, (9, 8)).save(file, "JPEG" if mode == "CMYK" else "PNG")
    assert np.asarray(decode(file.getvalue())).shape == (8, 9, 3)


def test_a_rotation_noted_in_a_photograph_is_not_applied() -> None:
    photograph, noted, file = Image.new("RGB", (20, 12)), Image.Exif(), BytesIO()
    noted[0x0112] = 6
    photograph.save(file, "JPEG", exif=noted)
    assert decode(file.getvalue()).size == picture_size(file.getvalue()) == (20, 12)


def test_of_a_photograph_with_several_pictures_the_first_is_read() -> None:
    first, second, file = Image.new("RGB", (20, 12)), Image.new("RGB", (5, 5)), BytesIO()
    first.save(file, "MPO", save_all=True, append_images=[second])
    assert decode(file.getvalue()).size == (20, 12)


def test_bytes_that_are_no_picture_are_refused() -> None:
    with pytest.raises(
        DataError, match="a picture of 5 bytes cannot be read: cannot identify image file; expected a f"
    ):
        decode(b"hello")


def test_a_truncated_picture_is_refused() -> None:
    with pytest.raises(DataError, match=r"a picture is damaged: .*; replace the file"):
        decode(draw_picture(64, 64)[:-2000])


def test_formats_that_are_not_expected_are_not_decoded() -> None:
    with pytest.raises(DataError, match="expected a file in PNG, JPEG, WEBP, GIF or BMP"):
        decode(draw_picture(8, 8, file_format="TIFF"))


@pytest.mark.parametrize("side", [8193, 30_000, 60_000])
def test_a_picture_made_to_fill_the_memory_is_refused_by_its_header(side: int) -> None:
    with pytest.raises(DataError, match="too large"):
        decode(_header_only(side, side))


def test_a_picture_at_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MAX_PIXELS", 64)
    assert decode(draw_picture(8, 8)).size == (8, 8)
    with pytest.raises(DataError, match="9 x 8 is 72 pixels, the limit is 64; make it smaller"):
        decode(draw_picture(9, 8))


def _header_only(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and has no pixels."""
    chunks = [b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0]), b"IDAT"]
    written = [(len(chunk) - 4).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)
