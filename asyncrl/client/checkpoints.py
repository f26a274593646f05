"""
Checkpoints between the trainer's machine and the broker's, for a trainer that does not see the run directory.

    step_000060/ ── offered, then the parts that are wanted ─▶ RUN/checkpoints/step_000060/      `CheckpointSender`
    step_000060/ ◀── fetched, if this machine has none as new ── RUN/checkpoints/step_000060/    `fetch_newest`

Both go on where they were interrupted, and end with a folder that is complete, or with none.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from asyncrl.actor.answer import receive_answer
from asyncrl.actor.link import Link
from asyncrl.client.files import LIST_S, fetch_file
from asyncrl.errors import LinkError, RunFailed
from asyncrl.files.atomic import replace_folder
from asyncrl.files.checkpoints import (
    BEST,
    MANIFEST,
    newest_complete,
    step_folders,
    step_of,
)
from asyncrl.files.disk import needed
from asyncrl.log import get_logger
from asyncrl.messages.files import (
    CheckpointWanted,
    FileList,
    ListFiles,
    OfferCheckpoint,
    PutCheckpointPart,
    PutCheckpointPartDone,
)

log = get_logger()

PART_BYTES = 1 << 20
PARTS_AHEAD = 4
"""Parts that were sent and are not yet stored."""
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
