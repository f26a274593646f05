"""
Fetches folders from the broker's spool into a cache of this machine.

    CACHE/files/SHA256         one file each, however many folders name it
    CACHE/files/SHA256.part    what has arrived of it; the next attempt goes on from there
    CACHE/folders/SHA256/      a folder of links to files

Several processes of a machine may want the same file: one fetches it, the others wait for that one.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path

from asyncrl.actor.answer import receive_answer
from asyncrl.actor.link import Link
from asyncrl.errors import LinkError
from asyncrl.files.disk import needed
from asyncrl.files.lock import try_lock
from asyncrl.files.user_folders import user_folder
from asyncrl.log import get_logger
from asyncrl.messages.files import FetchPart, FileDigest, FileList, FilePart, ListFiles

log = get_logger()

PART_BYTES = 1 << 20
PARTS_AHEAD = 4
"""Parts that are requested and have not arrived."""
LIST_S = 3600.0
"""Time limit to digest a folder on the broker's machine: about a minute for 100 GB, if the disk is fast."""
POLL_S = 0.5


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Cache of fetched files: ``$XDG_CACHE_HOME/asyncrl`` or ``~/.cache/asyncrl``."""
    return (user_folder("cache", environment) or Path.home() / ".cache") / "asyncrl"


async def fetch_folder(
    link: Link, folder: str, cache: Path, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Path:
    """
    Fetch a folder of the broker's machine over ``link``, or find it in the cache. Returns the copy.

    Raises:
        LinkError: It does not arrive in time, or is not as its digests say.
        RunFailed: The disk refuses a write.
    """
    await link.send(ListFiles(folder))
    listed = await receive_answer(link, FileList, LIST_S)
    if listed.problem or not listed.files:
        raise LinkError(f"the broker's machine cannot send {folder}: {listed.problem or 'it has no such folder'}")
    files = cache / "files"
    if missing := [file for file in listed.files if not _target(file, files).exists()]:
        log.info("files.fetching", folder=folder, files=len(missing), num_bytes=sum(file.size for file in missing))
    with needed(cache):
        files.mkdir(parents=True, exist_ok=True)
        targets = {file.name: await fetch_file(link, file, _target(file, files), sleep=sleep) for file in listed.files}
        return _linked(targets, cache / "folders")


def _target(file: FileDigest, folder: Path) -> Path:
    """Place of a file in the cache."""
    return folder / file.sha256.hex()


async def fetch_file(
    link: Link, file: FileDigest, target: Path, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Path:
    """Fetch a listed file to ``target``, unless it is there, and return that. Raises `LinkError` as `fetch_folder`."""
    is_here = target.exists
    if is_here():
        return target
    unfinished = target.with_name(f"{target.name}.part")
    part = _open(unfinished)
    try:
        while not is_here() and not try_lock(part.fileno()):
            await sleep(POLL_S)
        if is_here():  # Another process of this machine has fetched it.
            return target
        digest = await asyncio.to_thread(hashlib.file_digest, part, "sha256")
        async for content in _parts(link, file, part.tell()):
            part.write(content)
            digest.update(content)
        if digest.digest() != file.sha256:
            part.truncate(0)
            raise LinkError(f"{file.name} arrived damaged: expected SHA-256 {file.sha256.hex()[:12]}; fetch it again")
        part.flush()
        await asyncio.to_thread(os.fsync, part.fileno())
        unfinished.replace(target)
        return target
    finally:
        part.close()


async def _parts(link: Link, file: FileDigest, offset: int) -> AsyncIterator[memoryview]:
    """Bytes of a file from ``offset`` on; a few parts are requested ahead."""
    asked = offset
    while offset < file.size:
        while asked < min(file.size, offset + PARTS_AHEAD * PART_BYTES):
            await link.send(FetchPart(file.sha256, asked, min(PART_BYTES, file.size - asked)))
            asked += PART_BYTES
        part = await receive_answer(link, FilePart)
        if (part.sha256, part.offset) != (file.sha256, offset) or not part.content:
            raise LinkError(f"{file.name} has changed on the broker's machine while it was fetched: start again")
        yield part.content
        offset += len(part.content)


def _open(path: Path) -> BufferedRandom:
    """Open a file that may have a beginning, for reading and appending."""
    file = path.open("a+b")
    file.seek(0)
    return file


def _linked(targets: Mapping[str, Path], folders: Path) -> Path:
    """Folder in which these names are links to these files."""
    names = "\n".join(f"{name} {target.name}" for name, target in sorted(targets.items()))
    folder = folders / hashlib.sha256(names.encode()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        with suppress(FileExistsError):
            (folder / name).symlink_to(target.resolve())
    return folder
