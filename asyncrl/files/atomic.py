"""Files that are either whole or absent: a reader never meets half of one, whenever the writer died."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """
    A name beside ``path`` to write to. It takes the place of ``path`` if the block ends well, and vanishes if not.

    Args:
        path: What is replaced. Its folder is made if need be.
        durable: Wait until the disk has it (some milliseconds), so that it also survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        if durable:
            flush(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        flush(path.parent)


def flush(path: Path) -> None:
    """Onto the disk: what is in a file, or which names are in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
