"""
Atomic file replacement: a reader sees the old file or the new one, never a part, even if the writer is killed.

    a regular file, or nothing      written beside it, and renamed over it
    a link                          stays, and the file that it names is replaced
    a device, a FIFO                cannot be replaced: the complete contents are written into it
    a folder                        `IsADirectoryError`
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from asyncrl.errors import ConfigError, RunFailed


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """
    Temporary path to write to. It replaces ``path`` if the block succeeds and is deleted if it raises.

    Parent folders are created. ``durable`` waits for the disk (some milliseconds), so the file survives a power cut.
    """
    if _is_stream(path):
        with _copied_into(path) as unfinished:
            yield unfinished
        return
    path = Path(os.path.realpath(path))
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


def refuse_folder(path: Path) -> None:
    """Raise `IsADirectoryError` if ``path`` is a folder, in place of which no file can be written."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))


def refuse_existing(out: Path) -> None:
    """Raise `ConfigError` if there is anything at ``out``."""
    if out.exists():
        raise ConfigError(f"{out} exists and is never overwritten; give a directory that does not exist")


def flush(path: Path) -> None:
    """Sync the contents of a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Sync everything in a folder to disk, whatever wrote it."""
    for path in [folder, *folder.rglob("*")]:
        flush(path)


def replace_folder(unfinished: Path, folder: Path) -> None:
    """Have ``folder`` appear complete, in place of one of that name; it survives a power cut then."""
    flush_folder(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    flush(folder.parent)


def remove_folder(folder: Path, unfinished: Path) -> None:
    """Have ``folder`` vanish as a whole: nobody sees a part of it. What is left of it is ``unfinished`` by then."""
    shutil.rmtree(unfinished, ignore_errors=True)
    folder.rename(unfinished)
    shutil.rmtree(unfinished)


def _is_stream(path: Path) -> bool:
    """True for a device, FIFO or socket, also behind a link; False for a file, or nothing."""
    refuse_folder(path)
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _copied_into(path: Path) -> Iterator[Path]:
    """Temporary path whose contents are written into ``path`` if the block succeeds; blocks until a FIFO is read."""
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        with unfinished.open("rb") as source, path.open("wb", buffering=0) as target:
            shutil.copyfileobj(source, target)


# ── disk ──────────────────────────────────────────────────────────────────────────────────────
# Disk failures of append-only files: a tail torn by a power cut, and writes that fail, for example on a full disk.

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


# ── output ────────────────────────────────────────────────────────────────────────────────────
# A file that a command writes where its user said: `replacing`, with each failure as one sentence.

OUTPUT_REMEDY = "give the path of a file that can be written"


@contextmanager
def output(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Temporary path, as `replacing` gives it; raises `ConfigError` if the block or the replacement has an OSError."""
    try:
        with replacing(path, durable=durable) as unfinished:
            yield unfinished
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; {OUTPUT_REMEDY}") from error


def check_output(path: Path) -> None:
    """Raise `ConfigError` if ``path`` is a folder: for a command that works long before it writes."""
    try:
        refuse_folder(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; {OUTPUT_REMEDY}") from error
