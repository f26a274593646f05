"""Disk failures of append-only files: a tail torn by a power cut, and writes that fail, for example on a full disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from asyncrl.errors import RunFailed

REMEDY = "free space or repair the disk, then resume the run"


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
        raise RunFailed(f"cannot write {path}: {error.strerror or error}; {REMEDY}") from error
