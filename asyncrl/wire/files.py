"""Files between the broker's machine and others: folders fetched into a cache, and checkpoints in both directions."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from asyncrl.errors import LinkError, RunFailed
from asyncrl.files.access import user_folder
from asyncrl.files.atomic import needed, replace_folder
from asyncrl.files.checkpoints import (
    BEST,
    MANIFEST,
    newest_complete,
    step_folders,
    step_of,
)
from asyncrl.files.lock import try_lock
from asyncrl.log import get_logger
from asyncrl.messages.files import (
    CheckpointWanted,
    FetchPart,
    FileDigest,
    FileList,
    FilePart,
    ListFiles,
    OfferCheckpoint,
    PutCheckpointPart,
    PutCheckpointPartDone,
)
from asyncrl.messages.reward import ScoredItem
from asyncrl.messages.spool import PutItem, SpoolRef
from asyncrl.messages.trajectory import Image
from asyncrl.wire.link import Link, receive_answer
from asyncrl.wire.session import Limits

log = get_logger()

# ── folders ───────────────────────────────────────────────────────────────────────────────────
# Fetches folders from the broker's spool into a cache of this machine.
#
#     CACHE/files/SHA256         one file each, however many folders name it
#     CACHE/files/SHA256.part    what has arrived of it; the next attempt goes on from there
#     CACHE/folders/SHA256/      a folder of links to files
#
# Several processes of a machine may want the same file: one fetches it, the others wait for that one.

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
    part = unfinished.open("a+b")  # It may have a beginning.
    part.seek(0)
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


def _linked(targets: Mapping[str, Path], folders: Path) -> Path:
    """Folder in which these names are links to these files."""
    names = "\n".join(f"{name} {target.name}" for name, target in sorted(targets.items()))
    folder = folders / hashlib.sha256(names.encode()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (folder / name).symlink_to(target.resolve())
    return folder


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────
# Checkpoints between the trainer's machine and the broker's, for a trainer that does not see the run directory.
#
#     step_000060/ ── offered, then the parts that are wanted ─▶ RUN/checkpoints/step_000060/      `CheckpointSender`
#     step_000060/ ◀── fetched, if this machine has none as new ── RUN/checkpoints/step_000060/    `fetch_newest`
#
# Both go on where they were interrupted, and end with a folder that is complete, or with none.

ATTEMPTS = 20
"""Interruptions in a row, without any more of a checkpoint arriving, after which copying it is given up."""
RETRY_S = 1.0


class CheckpointSender:
    """
    Sends the newest checkpoint of ``directory`` to the broker's machine.

    Args:
        connect: Opens a link to the broker's spool that carries nothing else, so that trajectories do not wait.
    """

    def __init__(
        self,
        directory: Path,
        connect: Callable[[], Link],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._connect = connect
        self._sleep = sleep
        self._one_at_a_time = asyncio.Lock()
        self._sent: OfferCheckpoint | None = None

    async def send(self) -> None:
        """
        Return once the broker's machine has the newest checkpoint, and the name of the best one, on disk.

        Raises:
            RunFailed: That machine cannot store it.
            LinkError: It was interrupted too often, see `ATTEMPTS`.
        """
        async with self._one_at_a_time:
            if (newest := await asyncio.to_thread(_newest, self._directory)) is None:
                return
            folder, offer = newest
            if offer == self._sent:
                return
            attempts, wanted_before, cause = 0, None, "its files arrive damaged"
            while attempts < ATTEMPTS:
                link = self._connect()
                try:
                    if not (wanted := await _wanted(link, offer)):
                        self._sent = offer
                        return
                    attempts = attempts + 1 if wanted == wanted_before else 0
                    wanted_before = wanted
                    for name, offset in wanted.items():
                        await _send_file(link, offer.step, folder, name, offset)
                except LinkError as error:
                    attempts, cause = attempts + 1, str(error)
                    log.warning("checkpoint.copy_interrupted", path=str(folder), cause=cause)
                    await self._sleep(RETRY_S)
                finally:
                    await link.aclose()
            raise LinkError(f"{folder} could not be copied to the broker's machine: {cause}")


async def fetch_newest(link: Link, remote: str, directory: Path) -> Path | None:
    """
    Fetch the newest checkpoint of the broker's machine to ``directory``, unless there is one as new.

    Args:
        remote: Folder of the run's checkpoints on the broker's machine.

    Returns:
        Folder of the copy; None if nothing was fetched.

    Raises:
        LinkError: It does not arrive, or not as its digests say.
        RunFailed: The disk refuses a write.
    """
    await link.send(ListFiles(remote))
    listed = await receive_answer(link, FileList, LIST_S)
    if listed.problem:
        raise LinkError(f"the broker's machine cannot send {remote}: {listed.problem}")
    files = {Path(file.name): file for file in listed.files}
    manifest = next((path for path in files if path.name == MANIFEST), None)
    newest = await asyncio.to_thread(newest_complete, directory)
    if manifest is None or (newest and newest[0] >= step_of(manifest.parent.name)):
        return None
    folder = directory / manifest.parent
    partial = directory / f".{folder.name}.{files[manifest].sha256.hex()[:16]}.fetching"
    log.info("checkpoint.fetching", path=str(folder), num_bytes=sum(file.size for file in listed.files))
    with needed(folder):
        for path, file in files.items():
            if ".." in path.parts or path.parts[0] != folder.name:
                raise LinkError(f"the broker's machine lists {path}, which is no file of {folder.name}")
            target = partial.joinpath(*path.parts[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            await fetch_file(link, file, target)
        await asyncio.to_thread(_finish, partial, folder)
    return folder


def _newest(directory: Path) -> tuple[Path, OfferCheckpoint] | None:
    """Folder of the newest checkpoint, and the offer of it; None if there is none."""
    if (newest := newest_complete(directory)) is None:
        return None
    step, folder = newest
    best = directory / BEST
    return folder, OfferCheckpoint(
        step,
        (folder / MANIFEST).read_bytes(),
        list(step_folders(directory)),
        best.read_bytes() if best.exists() else b"",
    )


async def _wanted(link: Link, offer: OfferCheckpoint) -> dict[str, int]:
    """Bytes that are there of each file that is incomplete there."""
    await link.send(offer)
    wanted = await receive_answer(link, CheckpointWanted, LIST_S)
    if wanted.problem:
        raise RunFailed(f"the broker's machine cannot store the checkpoint of step {offer.step}: {wanted.problem}")
    return wanted.offsets


async def _send_file(link: Link, step: int, folder: Path, name: str, offset: int) -> None:
    """Send a file from ``offset`` on, a few parts ahead of the answers."""
    unanswered = 0
    with (folder / name).open("rb") as file:
        file.seek(offset)
        while content := await asyncio.to_thread(file.read, PART_BYTES):
            await link.send(PutCheckpointPart(step, name, file.tell() - len(content), memoryview(content)))
            unanswered += 1
            if unanswered == PARTS_AHEAD:
                await _stored(link)
                unanswered -= 1
    for _ in range(unanswered):
        await _stored(link)


async def _stored(link: Link) -> None:
    done = await receive_answer(link, PutCheckpointPartDone)
    if done.problem:
        raise LinkError(done.problem)


def _finish(partial: Path, folder: Path) -> None:
    """Have a fetched checkpoint appear, and remove what is left of others."""
    replace_folder(partial, folder)
    for other in folder.parent.glob(".step_*.fetching"):
        shutil.rmtree(other)


# ── chunks ────────────────────────────────────────────────────────────────────────────────────
# Sizes of what travels together, and the cut of a long list into messages.
#
#     512 trajectories ─▶ Put [0 .. 4] Put [5 .. 9] Put [10 .. 14] ...          about 3 MiB each
#
# The session carries far larger messages, in parts. A list is cut so that no number of items is too much, the first
# items are stored before the last ones have arrived, and a message fits into one frame, which is never copied to be
# joined.

T = TypeVar("T")

CHUNK_BYTES = 3 << 20
"""Bytes of the items in one message; a larger item travels alone."""
MAX_PAYLOAD_BYTES = 32 << 20
"""Largest payload that is stored, and most bytes that one `Fetch` may ask for; far below the largest message."""
MAX_VERDICT_BYTES = 1 << 20
"""Largest verdict on one trajectory."""
METRIC_BYTES = 14
"""Most bytes of a metric without the characters of its name."""


def cut_by_bytes(items: Iterable[T], size_of: Callable[[T], int], max_bytes: int = CHUNK_BYTES) -> Iterator[list[T]]:
    """Cut ``items``, in order, into lists of at most ``max_bytes``; a list of one item may be larger."""
    chunk: list[T] = []
    num_bytes = 0
    for item in items:
        size = size_of(item)
        if chunk and num_bytes + size > max_bytes:
            yield chunk
            chunk, num_bytes = [], 0
        chunk.append(item)
        num_bytes += size
    if chunk:
        yield chunk


def put_bytes(item: PutItem) -> int:
    return item.payload.nbytes


def wanted_bytes(wanted: SpoolRef | Image) -> int:
    return wanted.num_bytes if isinstance(wanted, Image) else wanted.length


def verdict_bytes(item: ScoredItem) -> int:
    """Size of the metrics and the answer of a verdict."""
    num_bytes = len(item.answer.encode()) if item.answer else 0
    for name in item.metrics:
        num_bytes += len(name.encode()) + METRIC_BYTES
    return num_bytes


def max_verdict_bytes(num: int) -> int:
    """Largest verdict of each of ``num`` trajectories that travel in one `Batch`: all of them take half the message."""
    return min(MAX_VERDICT_BYTES, Limits().message // 2 // num)
