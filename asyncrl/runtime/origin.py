"""
Origin of a run directory: the place in which its ledger was last served. A copy becomes a run of its own.

    the recorded place still holds the run, and this is another folder     a copy
    the same folder, or another one of the same path                       moved or mounted again, or restored
    another folder on the same disk                                        a copy: a folder that is moved stays the same
    another folder on another disk of the same machine                     moved: its former place is empty
    another folder, path and machine                                       a copy

Two runs with one identity would share what is found by it: a node or a spool of the one could serve the other.
"""

import os
import shutil
import socket
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import peek_meta
from asyncrl.files.atomic import needed, replacing
from asyncrl.files.checkpoints import MANIFEST, step_folders
from asyncrl.log import get_logger
from asyncrl.records.run_directory import RunDirectory

log = get_logger()

PLACE = "place"
"""Key in the ledger."""


class FolderPlace(Struct, frozen=True):
    """A run directory as its machine knows it."""

    path: str
    """Real path."""
    device: int
    inode: int
    machine: str


def place_of(path: Path) -> FolderPlace:
    """Place of a run directory."""
    found = path.stat()
    return FolderPlace(os.path.realpath(path), found.st_dev, found.st_ino, socket.gethostname())


def is_copy(recorded: FolderPlace, here: FolderPlace, *, original_is_there: bool) -> bool:
    """True if the run directory ``here`` is a copy of that which was ``recorded``."""
    if original_is_there:
        return True
    if recorded.inode == here.inode or recorded.path == here.path:
        return False
    return recorded.device == here.device or recorded.machine != here.machine


def original_of(directory: RunDirectory) -> FolderPlace | None:
    """Place of the run that ``directory`` is a copy of; None if it is no copy, or has no ledger yet."""
    try:
        recorded = msgspec.json.decode(peek_meta(directory.ledger, PLACE), type=FolderPlace)
    except msgspec.DecodeError:
        return None
    here = place_of(directory.path)
    return recorded if is_copy(recorded, here, original_is_there=_is_there(recorded, directory)) else None


def copy_sentence(directory: RunDirectory, original: FolderPlace) -> str:
    """Sentence on the copy of a run, for whoever resumes it."""
    return (
        f"{directory.path} is a copy of the run in {original.path}: it goes on as a run of its own, with another "
        f"identity and secret; nodes and spools of the original are not taken"
    )


def disown(directory: RunDirectory) -> None:
    """
    Take from a copy what connects it to its original: the secret, addresses, and what trackers have sent.

    Raises:
        RunFailed: The disk refuses it.
    """
    with needed(directory.path):
        for file in (directory.secret, directory.path / "key", directory.address):
            file.unlink(missing_ok=True)
        shutil.rmtree(directory.path / "metrics", ignore_errors=True)
        if directory.trackers.is_dir():  # Their own files stay readable.
            number = 1
            while (kept := directory.path / f"trackers-of-original-{number}").exists():
                number += 1
            directory.trackers.rename(kept)


def settle(directory: RunDirectory, ledger: Ledger) -> list[Path]:
    """
    Record the place of a run; a copy gets an identity, and its checkpoints get it too. To be done again after a crash.

    Returns:
        Manifests that were written anew.

    Raises:
        LedgerError, RunFailed: The disk refuses it.
    """
    renamed = list[Path]()
    here = place_of(directory.path)
    recorded = ledger.read_meta(PLACE)
    before = msgspec.json.decode(str(recorded), type=FolderPlace) if recorded else here
    if is_copy(before, here, original_is_there=_is_there(before, directory)):
        identity = sha256(msgspec.json.encode((ledger.run_id, here))).hexdigest()[:32]
        renamed = _rename_checkpoints(directory.checkpoints, ledger.run_id, identity)
        original = ledger.run_id
        ledger.rename_run(identity)
        cause = copy_sentence(directory, before)
        log.warning("run.copied", cause=cause)
        directory.append_event("run.copied", cause=cause, original=original, run_id=identity)
    elif before.path != here.path:
        log.info("run.moved", before=before.path, now=here.path)
        directory.append_event("run.moved", before=before.path, now=here.path)
    if before != here or not recorded:
        ledger.write_meta(PLACE, msgspec.json.encode(here).decode())
    return renamed


def _is_there(recorded: FolderPlace, directory: RunDirectory) -> bool:
    """True if another folder is at the recorded place, with the ledger of the same run."""
    path = Path(recorded.path)
    try:
        if not path.is_dir() or path.samefile(directory.path):
            return False
    except OSError:
        return False
    found = peek_meta(RunDirectory(path).ledger, "run_id")
    return bool(found) and found == peek_meta(directory.ledger, "run_id")


def _rename_checkpoints(checkpoints: Path, before: str, now: str) -> list[Path]:
    """Give the manifests of a run its new identity. One that is damaged is left to those who check it."""
    renamed = []
    for folder in step_folders(checkpoints).values():
        try:
            manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        if manifest.get("run_id") == before:
            with needed(folder), replacing(folder / MANIFEST) as unfinished:
                unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(manifest | {"run_id": now})) + b"\n")
            renamed.append(folder / MANIFEST)
    return renamed
