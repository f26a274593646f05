"""
Folders of checkpoints, without the trainer's libraries. A manifest, written last, lists every other file.

    checkpoints/
        step_000060/
            manifest.json                  {"files": {"model.safetensors": {"size": ..., "sha256": ...}, ...}, ...}
            model.safetensors …
        best.json                          the best on held-out prompts
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from asyncrl.errors import LedgerError

MANIFEST = "manifest.json"
BEST = "best.json"
SETTINGS = "asyncrl.toml"
"""File of an exported model: the settings that it was asked and evaluated with, for the next evaluation."""


class FileEntry(Struct, frozen=True):
    """Size in bytes and digest of a file when it was written."""

    size: int
    sha256: str


class ListedFiles(Struct, frozen=True, kw_only=True):
    """The part of a manifest that every kind has."""

    files: dict[str, FileEntry]
    """Files by path in the folder."""


Manifest = TypeVar("Manifest", bound=ListedFiles)


def read_manifest(folder: Path, kind: type[Manifest]) -> Manifest:
    """Read ``manifest.json``; raises `LedgerError` if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}; the checkpoint is incomplete") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path} is damaged: {error}; resume from an older checkpoint") from error


def file_entry(path: Path) -> FileEntry:
    """Read a file for its entry."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


def require_sizes(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Raise `LedgerError`, which names the file, if one is missing or has another size."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise LedgerError(f"{path} is missing; resume from an older checkpoint")
        if (size := path.stat().st_size) != expected.size:
            raise LedgerError(f"{path}: expected {expected.size} bytes, got {size}; resume from an older checkpoint")


def require_digests(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Compare every byte; raises `LedgerError`, which names the file that differs."""
    for name, expected in files.items():
        digest = file_entry(folder / name).sha256
        if digest != expected.sha256:
            raise LedgerError(
                f"{folder / name} differs from what was written: expected sha256 {expected.sha256}, got {digest}; "
                f"resume from an older checkpoint"
            )


def step_name(step: int) -> str:
    """Name of the folder of the checkpoint that contains so many steps."""
    return f"step_{step:06d}"


def step_folder(directory: Path, step: int) -> Path:
    """Folder of the checkpoint that contains so many steps."""
    return directory / step_name(step)


def step_of(name: str) -> int:
    """Steps that a checkpoint contains, by the name of its folder; -1 for another folder."""
    number = name.removeprefix("step_")
    return int(number) if number != name and number.isdecimal() else -1


def step_folders(directory: Path) -> dict[int, Path]:
    """Folders of checkpoints by the steps that they contain, oldest first."""
    return dict(sorted((step_of(path.name), path) for path in directory.glob("step_*") if step_of(path.name) >= 0))


def newest_complete(directory: Path) -> tuple[int, Path] | None:
    """Number and folder of the newest checkpoint with all files in their full size; None if there is none."""
    for step, folder in reversed(step_folders(directory).items()):
        try:
            require_sizes(folder, read_manifest(folder, ListedFiles).files)
        except (LedgerError, OSError):  # Reported by whoever resumes from it.
            continue
        return step, folder
    return None
