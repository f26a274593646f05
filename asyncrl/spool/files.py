"""
Files of a few folders by digest, for machines that lack them.

    list(folder) ─▶ names, sizes, SHA-256 of each file         read(sha256, offset, length) ─▶ bytes

Of the folder of checkpoints, the files of the newest complete one are listed, with the digests of its manifest.
Hashing reads every byte. Digests are kept, by path, size and time of change, in a file that outlives the process.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.files.atomic import replacing
from asyncrl.files.checkpoints import MANIFEST, ListedFiles, file_entry, newest_complete, read_manifest
from asyncrl.files.disk import needed
from asyncrl.messages.files import FileDigest

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
        return [FileDigest(path.name, digest.size, digest.sha256) for path, digest in found.items()]

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
    """Digests of an earlier process; a file that cannot be read is no loss but of time."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, KnownDigest])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
