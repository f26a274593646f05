"""Atomic file replacement: a reader sees the old file or the new one, never a part, even if the writer is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """
    Temporary path beside ``path`` to write to. It replaces ``path`` if the block succeeds and is deleted if it raises.

    Parent folders are created. ``durable`` waits for the disk (some milliseconds), so the file survives a power cut.
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
    """Sync the contents of a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
