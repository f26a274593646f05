"""
Copies of the trainer's checkpoints on the broker's machine, from which any machine can resume.

    OfferCheckpoint 60 ─▶ .step_000060.copying/     what has arrived of it, also in an earlier process
                       ◀─ the files that are incomplete, and how much of each is there
    PutCheckpointPart … ─▶ appended
    OfferCheckpoint 60 ─▶ all sizes and digests are right: flushed, renamed to step_000060/
                       ◀─ nothing is wanted

A copy appears complete or not at all, as the checkpoint does. A file that arrived damaged is wanted again.
"""

import hashlib
import shutil
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import remove_folder, replace_folder, replacing
from asyncrl.files.checkpoints import (
    BEST,
    MANIFEST,
    FileEntry,
    ListedFiles,
    require_sizes,
    step_folder,
    step_folders,
)
from asyncrl.log import get_logger
from asyncrl.messages.files import CheckpointWanted, OfferCheckpoint, PutCheckpointPart, PutCheckpointPartDone

log = get_logger()


class Incoming(Struct):
    """A checkpoint that is being copied."""

    step: int
    folder: Path
    files: dict[str, FileEntry]
    hashed: dict[str, "hashlib._Hash"]
    """Digest of what is there of each file that this process has seen."""


class CheckpointStore:
    """Copies of checkpoints in ``directory``, the newest being received. For one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._incoming: Incoming | None = None

    def answer(self, request: OfferCheckpoint | PutCheckpointPart) -> CheckpointWanted | PutCheckpointPartDone:
        """Take an offer or a part. What is wrong with it, or with the disk, is told in the answer."""
        try:
            if isinstance(request, OfferCheckpoint):
                return CheckpointWanted(request.step, self._offered(request))
            self._put(request)
            return PutCheckpointPartDone()
        except (LedgerError, OSError) as error:
            problem = f"cannot write {error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            self._incoming = None  # Known anew from the disk at the next offer.
            if isinstance(request, OfferCheckpoint):
                return CheckpointWanted(request.step, {}, problem)
            return PutCheckpointPartDone(problem)

    def _offered(self, offer: OfferCheckpoint) -> dict[str, int]:
        """Bytes that are there of each incomplete file; the copy is complete if there is none."""
        files = _files(offer)
        if not self._is_complete(offer, files):
            incoming = self._incoming = self._begun(offer, files)
            if wanted := {name: size for name in incoming.files if (size := _missing_from(incoming, name)) is not None}:
                return wanted
            self._complete(incoming)
        self._prune(offer)
        return {}

    def _is_complete(self, offer: OfferCheckpoint, files: dict[str, FileEntry]) -> bool:
        folder = step_folder(self._directory, offer.step)
        try:
            require_sizes(folder, files)
        except LedgerError:
            return False
        return _manifest(folder) == offer.manifest

    def _begun(self, offer: OfferCheckpoint, files: dict[str, FileEntry]) -> Incoming:
        """The offered checkpoint, with what an earlier process received of it."""
        if (known := self._incoming) and known.step == offer.step and _manifest(known.folder) == offer.manifest:
            return known
        folder = step_folder(self._directory, offer.step)
        partial = _unfinished(folder)
        if _manifest(partial) != offer.manifest:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            (partial / MANIFEST).write_bytes(offer.manifest)
        for name in files:
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).touch()
        return Incoming(offer.step, partial, files, {})

    def _put(self, part: PutCheckpointPart) -> None:
        incoming = self._incoming
        if incoming is None or incoming.step != part.step or part.name not in incoming.files:
            raise LedgerError(f"{part.name} of step {part.step} was not offered")
        path = incoming.folder / part.name
        if (size := path.stat().st_size) != part.offset:
            raise LedgerError(
                f"{part.name} of step {part.step}: expected bytes from {size}, got those from {part.offset}"
            )
        if part.offset + len(part.content) > incoming.files[part.name].size:
            raise LedgerError(f"{part.name} of step {part.step} is larger than its manifest says")
        hashed = _hashed(incoming, part.name)
        with path.open("ab") as file:
            file.write(part.content)
        hashed.update(part.content)

    def _complete(self, incoming: Incoming) -> None:
        folder = step_folder(self._directory, incoming.step)
        replace_folder(incoming.folder, folder)
        self._incoming = None
        log.info("checkpoint.copied", path=str(folder))

    def _prune(self, offer: OfferCheckpoint) -> None:
        """Remove copies that the trainer no longer keeps, and unfinished ones; write ``best.json``."""
        folders = step_folders(self._directory)
        for unfinished in self._directory.glob(".step_*.copying"):
            shutil.rmtree(unfinished)
        for step, folder in folders.items():
            if step < offer.step and step not in offer.kept:
                remove_folder(folder, _unfinished(folder))
        best = self._directory / BEST
        if offer.best and not (best.exists() and best.read_bytes() == offer.best):
            with replacing(best) as unfinished:
                unfinished.write_bytes(offer.best)


def _files(offer: OfferCheckpoint) -> dict[str, FileEntry]:
    """Files of an offered manifest; raises `LedgerError` if it is none, or names a place outside of its folder."""
    try:
        files = msgspec.json.decode(offer.manifest, type=ListedFiles).files
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"the manifest of step {offer.step} is damaged: {error}") from error
    if offer.step < 1 or not all(map(_is_inside, files)):
        raise LedgerError(f"the manifest of step {offer.step} names a file that is none of a checkpoint")
    return files


def _is_inside(name: str) -> bool:
    """True for a name, or a name in one folder."""
    parts = PurePosixPath(name).parts
    return (
        1 <= len(parts) <= 2 and "/".join(parts) == name and not {"/", "..", MANIFEST} & {*parts} and "\0" not in name
    )


def _unfinished(folder: Path) -> Path:
    """Name of a copy while it arrives, and while it is removed."""
    return folder.with_name(f".{folder.name}.copying")


def _manifest(folder: Path) -> bytes:
    """Contents of a folder's manifest; empty if it has none."""
    try:
        return (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return b""


def _missing_from(incoming: Incoming, name: str) -> int | None:
    """Bytes that are there of a file; None if it is complete. One that cannot become complete is emptied."""
    path, expected = incoming.folder / name, incoming.files[name]
    hashed, size = _hashed(incoming, name), path.stat().st_size
    if size < expected.size:
        return size
    if size == expected.size and hashed.hexdigest() == expected.sha256:
        return None
    log.warning("checkpoint.damaged_copy", path=str(path))
    path.write_bytes(b"")
    del incoming.hashed[name]
    return 0


def _hashed(incoming: Incoming, name: str) -> "hashlib._Hash":
    """Digest of what is there of a file, read from the disk if another process received it."""
    if name not in incoming.hashed:
        with (incoming.folder / name).open("rb") as file:
            incoming.hashed[name] = hashlib.file_digest(file, "sha256")
    return incoming.hashed[name]
