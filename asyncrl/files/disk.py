"""Disk failures of append-only files: a tail torn by a power cut, and writes that fail, for example on a full disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from asyncrl.errors import RunFailed

REMEDY = "free space or repair the disk, then start or resume the run"
NOT_WRITABLE = "give a folder that can be written, or make this one so"
FULL_BYTES = 64 << 10
"""Free space with which a disk counts as full: SQLite and file systems take it in blocks."""


class TornTail(NamedTuple):
    """An incomplete record at the end of a file, left by a writer that died. Its write was never acknowledged."""

    path: Path
    offset: int
    """End of the last complete record, bytes."""
    num_bytes: int
    """Bytes after ``offset``."""


@contextmanager
def needed(path: Path) -> Iterator[None]:
    """Context for writes that the run needs: an OSError becomes `RunFailed`, naming ``path`` and the cause."""
    try:
        yield
    except OSError as error:
        remedy = NOT_WRITABLE if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else REMEDY
        raise RunFailed(f"cannot write {path}: {error.strerror or error}; {remedy}") from error


def cause(path: Path, error: Exception) -> str:
    """Text of an error in writing ``path``; SQLite gives "disk I/O error", also where there is no space left."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return str(error)
    return f"{error}: no space left on the disk" if disk.f_bavail * disk.f_frsize < FULL_BYTES else str(error)
