r"""
Column of pictures in the parquet files of samples and evaluations.

    images: [{path: "9f86d081...", width: 628, height: 453, bytes: b"\x89PNG..."}]      bytes: null if left out

``bytes`` and ``path`` are the keys by which viewers of datasets know a picture; ``path`` is the digest of its file.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from asyncrl.messages.trajectory import Image

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second
    import pyarrow as pa

ImageCell = list[dict[str, str | int | bytes | None]]


def image_cell(images: Sequence[Image], files: Sequence[bytes] = ()) -> ImageCell:
    """Cell with these pictures; without ``files`` the bytes are null."""
    return [
        {"path": image.digest.hex(), "width": image.width, "height": image.height, "bytes": content}
        for image, content in zip_longest(images, files)
    ]


def image_type() -> "pa.DataType":
    """Arrow type of the column."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    fields = [("path", pa.string()), ("width", pa.int32()), ("height", pa.int32()), ("bytes", pa.binary())]
    return pa.list_(pa.struct(fields))
