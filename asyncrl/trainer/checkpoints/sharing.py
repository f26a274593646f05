"""
The newest checkpoint of all machines of a trainer, on all of them.

    each machine's reader ── step, digest of the manifest ─▶ all-gather ─▶ the newest, and who has it
    its first owner ── file by file, chunk by chunk ─▶ broadcast ─▶ the readers of machines that lack it ─▶ their disks

Machines that share a file system, or wrote the same checkpoint, copy nothing. A copy appears complete or not at all, as
a checkpoint does, and replaces another one of the same step, which a group with other ranks may have written.
"""

import hashlib
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from asyncrl.files.atomic import replace_folder
from asyncrl.files.checkpoints import MANIFEST, step_folder
from asyncrl.files.disk import needed
from asyncrl.log import get_logger
from asyncrl.messages.trainer import DamagedCheckpoint
from asyncrl.trainer.checkpoints.checkpoint import prune, read_manifest, search, verify
from asyncrl.trainer.ranks.ranks import Ranks

log = get_logger()

CHUNK_BYTES = 16 << 20


class Newest(NamedTuple):
    """Checkpoint that every rank goes on from, and those that are passed over."""

    folder: Path | None
    """None if nobody has an intact one."""
    damaged: list[DamagedCheckpoint]
    """Newer than the newest intact one of their machine."""


class Found(Struct, frozen=True, order=True):
    """Newest intact checkpoint of one machine."""

    step: int = 0
    """0 if it has none."""
    digest: str = ""
    """sha256 of the manifest, which has those of all other files."""


def newest_of_all(directory: Path, ranks: Ranks, *, is_reader: bool, keep: int = 0) -> Newest:
    """
    Find the newest intact checkpoint of all ranks. Collective.

    Args:
        directory: Folder of this machine's checkpoints. A missing checkpoint is copied into it.
        is_reader: True for one rank of each machine: it reads every byte there, and writes.
        keep: Checkpoints to keep on a machine that got a copy; 0 removes none.

    Raises:
        RunFailed: The disk refused the copy.
        LedgerError: The copy differs from what was written.
    """
    own, passed_over = _newest(directory) if is_reader else (Found(), [])
    encoded = ranks.all_gather(msgspec.msgpack.encode((own, passed_over)))
    reports = [msgspec.msgpack.decode(report, type=tuple[Found, list[DamagedCheckpoint]]) for report in encoded]
    all_found = [found for found, _ in reports]
    damaged = list({one.checkpoint: one for _, of_rank in reports for one in of_rank}.values())
    newest = max(all_found, key=lambda found: found.step)
    if not newest.step:
        return Newest(None, damaged)
    folder = step_folder(directory, newest.step)
    lacks = is_reader and own != newest
    if any(ranks.all_gather(b"lacks" if lacks else b"")):
        source = all_found.index(newest)
        _copy(folder, ranks, source, writes=lacks)
        if lacks and keep:
            prune(directory, keep)
        ranks.all_gather(b"written")  # Other ranks of the machine read it next.
    return Newest(folder, damaged)


def _newest(directory: Path) -> tuple[Found, list[DamagedCheckpoint]]:
    found, damaged = search(directory)
    if found is None:
        return Found(), damaged
    manifest = (found[0] / MANIFEST).read_bytes()
    return Found(found[1].step, hashlib.sha256(manifest).hexdigest()), damaged


def _copy(folder: Path, ranks: Ranks, source: int, *, writes: bool) -> None:
    """Send every file of a checkpoint from rank ``source`` to all ranks; those that ``writes`` keep it."""
    partial = folder.parent / f".{folder.name}.partial"
    if writes:
        log.info("checkpoint.copied", path=str(folder), source_rank=source)
        with needed(partial):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
    for name, size in _files(folder, ranks, source).items():
        with needed(partial / name):
            _copy_file(folder / name, partial / name, size, ranks, source, writes=writes)
    if writes:
        verify(partial)
        with needed(folder):
            replace_folder(partial, folder)


def _files(folder: Path, ranks: Ranks, source: int) -> dict[str, int]:
    """Size of every file by its path in the folder; the manifest is the last."""
    sizes = {}
    if ranks.rank == source:
        sizes = {name: entry.size for name, entry in read_manifest(folder).files.items()}
        sizes[MANIFEST] = (folder / MANIFEST).stat().st_size
    sent = ranks.broadcast(msgspec.msgpack.encode(sizes), source)
    return msgspec.msgpack.decode(sent, type=dict[str, int])


def _copy_file(original: Path, copy: Path, size: int, ranks: Ranks, source: int, *, writes: bool) -> None:
    reader = original.open("rb") if ranks.rank == source else None
    if writes:
        copy.parent.mkdir(exist_ok=True)
    writer = copy.open("wb") if writes else None
    try:
        for _ in range(0, size, CHUNK_BYTES):
            data = reader.read(CHUNK_BYTES) if reader else b""
            data = ranks.broadcast(data, source)
            if writer:
                writer.write(data)
    finally:
        for file in (reader, writer):
            if file:
                file.close()
