"""Pictures as viewers of datasets know them."""

import pyarrow as pa

from asyncrl.evaluation.image_column import image_cell, image_type
from asyncrl.messages.trajectory import Image

IMAGES = [Image(b"\1" * 32, 24, 16, 3), Image(b"\2" * 32, 8, 8, 4)]


def test_a_cell_names_each_picture_and_has_its_file_if_there_is_one() -> None:
    first, second = image_cell(IMAGES, [b"red", b"blue"])
    assert first == {"path": "01" * 32, "width": 24, "height": 16, "bytes": b"red"}
    assert second["bytes"] == b"blue"
    assert [cell["bytes"] for cell in image_cell(IMAGES)] == [None, None]


def test_cells_with_and_without_files_fit_the_column() -> None:
    cells = [image_cell(IMAGES, [b"red", b"blue"]), image_cell(IMAGES), []]
    assert pa.array(cells, image_type()).to_pylist() == cells
