"""Files on the broker's machine for machines that lack them: copies of checkpoints, and folders of models by digest."""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import needed, remove_folder, replace_folder, replacing
from asyncrl.files.checkpoints import (
    BEST,
    MANIFEST,
    FileEntry,
    ListedFiles,
    file_entry,
    newest_complete,
    read_manifest,
    require_sizes,
    step_folder,
    step_folders,
)
from asyncrl.log import get_logger
from asyncrl.messages.files import (
    CheckpointWanted,
    FileDigest,
    OfferCheckpoint,
    PutCheckpointPart,
    PutCheckpointPartDone,
)

log = get_logger()

# ── checkpoints ───────────────────────────────────────────────────────────────────────────────
# Copies of the trainer's checkpoints on the broker's machine, from which any machine can resume.
#
#     OfferCheckpoint 60 ─▶ .step_000060.copying/     what has arrived of it, also in an earlier process
#                        ◀─ the files that are incomplete, and how much of each is there
#     PutCheckpointPart … ─▶ appended
#     OfferCheckpoint 60 ─▶ all sizes and digests are right: flushed, renamed to step_000060/
#                        ◀─ nothing is wanted
#
# A copy appears complete or not at all, as the checkpoint does. A file that arrived damaged is wanted again.


class IncomingCheckpoint(Struct):
    """A checkpoint that is being copied."""

    step: int
    folder: Path
    files: dict[str, FileEntry]
    hashed: dict[str, "hashlib._Hash"]
    """Running digest of the bytes that arrived of each file, for files that this process received or read."""


class CheckpointStore:
    """Copies of checkpoints in ``directory``, the newest being received. For one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._incoming: IncomingCheckpoint | None = None

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
        """
        Note an offered checkpoint. Returns how many bytes of each incomplete file the copy has; the copy is complete
        without any.
        """
        files = _files(offer)
        if not self._is_complete(offer, files):
            incoming = self._incoming = self._begun(offer, files)
            if wanted := {name: size for name in incoming.files if (size := _missing_from(incoming, name)) is not None}:
                return wanted
            folder = step_folder(self._directory, incoming.step)
            replace_folder(incoming.folder, folder)
            self._incoming = None
            log.info("checkpoint.copied", path=str(folder))
        self._prune(offer)
        return {}

    def _is_complete(self, offer: OfferCheckpoint, files: dict[str, FileEntry]) -> bool:
        folder = step_folder(self._directory, offer.step)
        try:
            require_sizes(folder, files)
        except LedgerError:
            return False
        return _manifest(folder) == offer.manifest

    def _begun(self, offer: OfferCheckpoint, files: dict[str, FileEntry]) -> IncomingCheckpoint:
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
        return IncomingCheckpoint(offer.step, partial, files, {})

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
    """True for the path of a file in the checkpoint's folder, or in one folder below it."""
    parts = PurePosixPath(name).parts
    return (
        1 <= len(parts) <= 2 and "/".join(parts) == name and not {"/", "..", MANIFEST} & {*parts} and "\0" not in name
    )


def _unfinished(folder: Path) -> Path:
    """Hidden name of a copy's folder while it arrives, and while it is removed."""
    return folder.with_name(f".{folder.name}.copying")


def _manifest(folder: Path) -> bytes:
    """Contents of a folder's manifest; empty if it has none."""
    try:
        return (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return b""


def _missing_from(incoming: IncomingCheckpoint, name: str) -> int | None:
    """Number of bytes that arrived of a file; None if it is complete. A file that cannot become complete is emptied."""
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


def _hashed(incoming: IncomingCheckpoint, name: str) -> "hashlib._Hash":
    """Running digest of the bytes that arrived of a file, read from the disk if another process received them."""
    if name not in incoming.hashed:
        with (incoming.folder / name).open("rb") as file:
            incoming.hashed[name] = hashlib.file_digest(file, "sha256")
    return incoming.hashed[name]


# ── files ─────────────────────────────────────────────────────────────────────────────────────
# Files of a few folders by digest, for machines that lack them.
#
#     list(folder) ─▶ names, sizes, SHA-256 of each file         read(sha256, offset, length) ─▶ bytes
#
# Of the folder of checkpoints, the files of the newest complete one are listed, with the digests of its manifest.
# Hashing reads every byte. Digests are kept, by path, size and time of change, in a file that outlives the process.

MAX_PART_BYTES = 1 << 20
"""Most bytes that one `read` returns."""


class KnownDigest(Struct, frozen=True):
    """Digest of a file while its size and its time of change stay the same."""

    size: int
    mtime_ns: int
    sha256: bytes


class FileServer:
    """
    Serves the files named in ``folders``, and no others. For one thread.

    Args:
        folders: Names of files by folder.
        known: File for the digests.
        checkpoints: Folder of the run's checkpoints.
    """

    def __init__(self, folders: dict[str, list[str]], known: Path, checkpoints: Path) -> None:
        self._folders = folders
        self._checkpoints = checkpoints
        self._known_file = known
        self._known = _read_known(known)
        self._paths: dict[bytes, Path] = {}

    def list(self, folder: str) -> Iterable[FileDigest]:
        """
        Digest every file of a folder; none of one that is not served.

        Raises:
            OSError: A file cannot be read.
        """
        if folder == str(self._checkpoints):
            return self._newest_checkpoint()
        paths = [Path(folder) / name for name in self._folders.get(folder, [])]
        before = dict(self._known)
        found = {path: self._digest(path) for path in paths}
        if self._known != before:
            with needed(self._known_file), replacing(self._known_file, durable=False) as unfinished:
                unfinished.write_bytes(msgspec.json.encode(self._known))
        self._paths.update({digest.sha256: path for path, digest in found.items()})
        return [FileDigest(str(path.relative_to(folder)), digest.size, digest.sha256) for path, digest in found.items()]

    def _newest_checkpoint(self) -> Iterable[FileDigest]:
        """Files of the newest complete checkpoint, by their path in the folder of checkpoints; none without one."""
        if (newest := newest_complete(self._checkpoints)) is None:
            return []
        _, folder = newest
        files = {folder / MANIFEST: file_entry(folder / MANIFEST)}
        files |= {folder / name: entry for name, entry in read_manifest(folder, ListedFiles).files.items()}
        self._paths.update({bytes.fromhex(entry.sha256): path for path, entry in files.items()})
        return [
            FileDigest(str(path.relative_to(self._checkpoints)), entry.size, bytes.fromhex(entry.sha256))
            for path, entry in files.items()
        ]

    def read(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Part of a listed file; nothing of one that was not listed, or is gone."""
        path = self._paths.get(sha256)
        if path is None or not offset >= 0 or not 0 <= length <= MAX_PART_BYTES:
            return b""
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), length, offset)
        except OSError:
            return b""

    def _digest(self, path: Path) -> KnownDigest:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            known = self._known.get(str(path))
            if known is None or (known.size, known.mtime_ns) != (found.st_size, found.st_mtime_ns):
                sha256 = hashlib.file_digest(file, "sha256").digest()
                known = self._known[str(path)] = KnownDigest(found.st_size, found.st_mtime_ns, sha256)
        return known


def _read_known(file: Path) -> dict[str, KnownDigest]:
    """Digests that an earlier process found; none if their file cannot be read, which costs only time."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, KnownDigest])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
