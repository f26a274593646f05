"""What a disk does to files that are appended to: it tears their end when the power goes, and it fills up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from asyncrl.errors import RunFailed

REMEDY = "free space or repair the disk, then resume the run"
"""What to do when a disk does not take what it is given."""


class TornTail(NamedTuple):
    """The end of a file that its last writer did not finish. Nobody was told that it was written."""

    path: Path
    offset: int
    """Where what is whole ends."""
    num_bytes: int
    """Beyond it."""


@contextmanager
def needed(path: Path) -> Iterator[None]:
    """
    For writing what the run cannot go on without.

    Raises:
        RunFailed: The disk did not take it; names the file and the cause.
    """
    try:
        yield
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror or error}; {REMEDY}") from error
