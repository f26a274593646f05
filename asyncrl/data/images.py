r"""
Pictures of a dataset's rows: the files that the image column holds or names, and a prompt's record of each.

    [{"bytes": b"\x89PNG...", "path": "11.png"}]      as verl and the hub write them
    [b"\x89PNG..."]     ["diagrams/11.png"]           files, or paths below the dataset's own folder (`ImageFiles`)

A single picture may stand without a list. Here only a file's header is read, for its size; engines and trainer decode
the pixels.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError, DataError
from asyncrl.files.foreign import read_bytes
from asyncrl.foreign_text import shown
from asyncrl.messages.trajectory import Image
from asyncrl.vision.settings import FAMILIES, read_settings

# ── image files ───────────────────────────────────────────────────────────────────────────────
# Files of pictures that a dataset's rows name by paths: who writes a dataset decides which files of a machine are
# read.
#
#     "diagrams/1.png" ─ below the dataset's own folder, or one of data.image_folders? ─ a regular file? ─▶ its bytes
#
# Both questions are asked of the file that links lead to, which is read as any file of others.

MAX_FILE_BYTES = 32 << 20
"""Largest file of a picture; like a payload, a file is sent to the nodes in one message."""
SETTING = "data.image_folders"


class ImageFiles:
    """
    Files that the rows of one dataset may name.

    Args:
        dataset: File of the rows. Relative paths begin at its folder; if it is a link, as in the hub's cache, the
            pictures may also be in the folder that it leads to.
        folders: Further folders that the operator allows.
    """

    def __init__(self, dataset: Path, folders: Sequence[str] = ()) -> None:
        self._folder = dataset.parent
        self._allowed = {Path(os.path.realpath(folder)) for folder in (str(dataset.parent), *folders)}
        self._allowed.add(Path(os.path.realpath(dataset)).parent)

    def read(self, name: str) -> bytes:
        """Read a file. Raises `DataError` if a row may not name it, or it cannot be read, or is too large."""
        path = self._folder / name
        try:
            found = Path(os.path.realpath(path))
            # Asked before whether there is such a file, which is nobody's business either.
            if self._allowed.isdisjoint((found, *found.parents)):
                link = "" if found == path else f"leads to {_named(found)}, which "
                raise DataError(
                    f"picture {_named(path)} {link}is not below the dataset's folder {self._folder.absolute()}; move "
                    f"it there, or allow its folder with {SETTING}"
                )
            return read_bytes(found, MAX_FILE_BYTES, f"picture {_named(path)}", follow=False)
        except OSError as error:
            raise DataError(f"picture {_named(path)} cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # a NUL byte, or what no file system encodes
            raise DataError(f"picture {_named(path)} cannot be read: that is no path of a file") from error


def too_large(what: str) -> str:
    """Sentence that refuses a picture with more than `MAX_FILE_BYTES`."""
    return f"{what} is too large: the limit is {MAX_FILE_BYTES:,} bytes; make it smaller"


def _named(path: Path) -> str:
    return shown(str(path))


# ── images ────────────────────────────────────────────────────────────────────────────────────

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


def check_model_reads(model: Path, num_images: int) -> None:
    """Raise `ConfigError` if there are pictures, and the model reads none, or lacks the settings to read them."""
    if num_images and read_settings(model) is None:
        raise ConfigError(
            f"the prompts have {num_images} pictures, but the model {model} reads none; give model.path one of "
            f"{', '.join(FAMILIES)}, or remove the pictures and their marks from the dataset"
        )


def _kind(item: Any) -> str:
    if isinstance(item, dict):
        return f"a dict with {', '.join(map(str, item)) or 'nothing'}"
    return "null" if item is None else f"{type(item).__name__} {item!r:.40}"
