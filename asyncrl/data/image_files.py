"""
Files of pictures that a dataset's rows name by paths: who writes a dataset decides which files of a machine are read.

    "diagrams/1.png" ─ below the dataset's own folder, or one of data.image_folders? ─ a regular file? ─▶ its bytes

Both questions are asked of the file that links lead to, before it is opened: to open a device may already act on it.
Nothing waits, and never more than `MAX_FILE_BYTES` are read, whatever size a file claims.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import DataError
from asyncrl.foreign_text import shown

MAX_FILE_BYTES = 32 << 20
"""Largest file of a picture; like a payload, a file is sent to the nodes in one message."""
SETTING = "data.image_folders"

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}
"""Names of what a path may be instead of a regular file."""


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
            return _read(found, _named(path))
        except OSError as error:
            raise DataError(f"picture {_named(path)} cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # a NUL byte, or what no file system encodes
            raise DataError(f"picture {_named(path)} cannot be read: that is no path of a file") from error


def too_large(what: str) -> str:
    """Sentence that refuses a picture with more than `MAX_FILE_BYTES`."""
    return f"{what} is too large: the limit is {MAX_FILE_BYTES:,} bytes; make it smaller"


def _read(path: Path, name: str) -> bytes:
    _require_regular(path.lstat().st_mode, name)
    # It may be replaced between the two questions; then O_NONBLOCK and O_NOFOLLOW answer.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(file).st_mode, name)
        content = bytearray()
        while len(content) <= MAX_FILE_BYTES:
            chunk = os.read(file, MAX_FILE_BYTES + 1 - len(content))
            if not chunk:
                return bytes(content)
            content += chunk
    finally:
        os.close(file)
    raise DataError(too_large(f"picture {name}"))


def _require_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise DataError(f"picture {name} cannot be read: it is {kind}, expected a regular file")


def _named(path: Path) -> str:
    return shown(str(path))
