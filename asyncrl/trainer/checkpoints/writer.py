"""
Checkpoints beside training: written while the next steps train, kept or deleted, and shared by the machines of a
trainer.

    train k ─▶ take ─▶ train k + 1 ─▶ train k + 2 ─▶ ...        compute thread
                  └──▶ hash, flush, rename ─▶ copy to the broker's machine, if needed ─▶ Commit(k)   this thread

One checkpoint is completed at a time; a further one waits, because it would only fill memory. The broker learns of a
checkpoint once it is complete, and keeps everything the run needs to resume from the one before until then.
"""

import asyncio
import hashlib
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.config.model.tokenizer import prompt_files
from asyncrl.config.sections.evaluation import Checkpoint
from asyncrl.errors import ConfigError
from asyncrl.failpoints import failpoint
from asyncrl.files.atomic import needed, replace_folder, replacing
from asyncrl.files.checkpoints import BEST, MANIFEST, FileEntry, step_folder
from asyncrl.log import get_logger
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trainer import Commit, DamagedCheckpoint, Evaluating, Stepped
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.checkpoint import prune, read_manifest, search, verify
from asyncrl.trainer.checkpoints.snapshot import Snapshot
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.wire.files import CheckpointSender
from asyncrl.wire.link import Link, OtherCameFirst, unless

# ── retention ─────────────────────────────────────────────────────────────────────────────────
# Decide which checkpoints of a run to keep: the newest few, and the best by evaluation on held-out prompts.
#
#     Evaluating(40) ─▶ keep step 40 ─▶ Evaluated(40, 0.71) ─▶ best: named in best.json and kept; else: may be removed
#
# A version without a checkpoint can be evaluated, but cannot be the best that is kept.

log = get_logger()


class Best(Struct, frozen=True, kw_only=True):
    """Contents of ``best.json``: the best checkpoint, in folder ``step_<step>``."""

    step: int
    policy_version: int
    metric: str
    value: float


class Retention:
    """Keep and remove checkpoints in ``directory``. `evaluating` and `evaluated` may run beside the other methods."""

    def __init__(self, directory: Path, config: Checkpoint) -> None:
        self._directory = directory
        self._config = config
        self._values: dict[int, float] = {}
        """Value of ``best_metric``, by evaluated version."""
        self._in_evaluation = -1

    def evaluating(self, policy_version: int) -> None:
        """Keep the checkpoint of this version until it is evaluated."""
        self._in_evaluation = policy_version

    def evaluated(self, result: Evaluated) -> None:
        """
        Note a result; one without prompts or with a non-finite value is ignored.

        Raises `ConfigError`, with the metrics that there are, if the result lacks ``checkpoint.best_metric``.
        """
        if not self._config.keep_best:
            return
        if result.policy_version == self._in_evaluation:
            self._in_evaluation = -1
        metrics = result.by_name
        if (value := metrics.get(self._config.best_metric)) is None:
            raise ConfigError(
                f"checkpoint.best_metric is {self._config.best_metric!r}, which evaluations do not report; use one of "
                f"{', '.join(metrics)}"
            )
        if result.num_prompts and isfinite(value):
            self._values[result.policy_version] = value

    def write_best(self) -> Best | None:
        """Write ``best.json`` if the best checkpoint changed; raises `RunFailed` if the disk fails."""
        if not self._config.keep_best:
            return None
        if (best := self._best()) is not None:
            self._write(best)
        return best

    def prune(self) -> None:
        """
        Write ``best.json``, and remove checkpoints that need not be kept; raises `RunFailed` if the disk fails.

        Call it only after this process has written a checkpoint: older ones may be unreadable, unknown to this process.
        """
        spared: list[Path] = []
        if self._config.keep_best:
            best, folders = self.write_best(), self._folders()
            versions = (best.policy_version if best else -1, self._in_evaluation)
            spared = [folders[version] for version in versions if version in folders]
        checkpoint.prune(self._directory, self._config.keep, spared)

    def _folders(self) -> dict[int, Path]:
        """Complete checkpoints, by policy version."""
        return {manifest.policy_version: folder for folder, manifest in checkpoint.complete(self._directory)}

    def _best(self) -> Best | None:
        """Best evaluated checkpoint; the earliest of equals."""
        candidates = [
            Best(
                step=int(folder.name.removeprefix("step_")),
                policy_version=version,
                metric=self._config.best_metric,
                value=self._values[version],
            )
            for version, folder in sorted(self._folders().items())
            if version in self._values
        ]
        return max(candidates, key=lambda best: best.value, default=None)

    def _write(self, best: Best) -> None:
        path = self._directory / BEST
        text = msgspec.json.format(msgspec.json.encode(best)) + b"\n"
        with needed(path):
            if path.exists() and path.read_bytes() == text:
                return
            with replacing(path) as unfinished:
                unfinished.write_bytes(text)
        log.info("checkpoint.best", **msgspec.to_builtins(best))


# ── writer ────────────────────────────────────────────────────────────────────────────────────

LAST_COPY_S = 5.0
"""Time to copy a checkpoint, or the name of the best, after the end of the run: shorter than the broker waits."""
Result = TypeVar("Result")


class CheckpointWriter:
    """
    Checkpoints of the run with this id, announced over ``link`` to the broker.

    Args:
        sender: Copies checkpoints to the broker's machine; None if they are there.

    Leaving its ``with`` block waits until the current checkpoint is complete.
    """

    def __init__(
        self,
        directory: Path,
        config: Checkpoint,
        *,
        tokenizer: checkpoint.Tokenizer,
        link: Link,
        run_id: str = "",
        sender: CheckpointSender | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._tokenizer = tokenizer
        self._link = link
        self._run_id = run_id
        self._sender = sender
        self._clock = clock
        self._retention = Retention(directory, config)
        self._writing: asyncio.Task[None] | None = None
        self._has_written = False
        self._no_more_copies = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer-checkpoint")

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    async def wait_idle(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def end_copies(self) -> None:
        """Copy what is left within `LAST_COPY_S`: the broker is leaving. What was not copied is not committed."""
        asyncio.get_running_loop().call_later(LAST_COPY_S, self._no_more_copies.set)

    async def begin(self, step: int) -> None:
        """Wait until no checkpoint is being written, and make an empty folder for the parts of this one."""
        await self.wait_idle()
        await self._in_thread(partial(checkpoint.begin, self._directory, step))

    def take(self, step: int, snapshot: Callable[[Path], Snapshot]) -> Snapshot:
        """Take the contents of a checkpoint, on the thread that computes; raises `RunFailed` if the disk fails."""
        return checkpoint.take(self._directory, step, snapshot)

    def write(
        self,
        tasks: asyncio.TaskGroup,
        *,
        step: int,
        policy_version: int,
        stepped: Sequence[Stepped],
        ledger: tuple[int, str] = (0, ""),
        snapshot: Snapshot,
        others: Callable[[], Awaitable[Mapping[str, FileEntry]]],
    ) -> None:
        """
        Write a checkpoint of ``step`` steps in a task of ``tasks``, then send `Commit`.

        Args:
            ledger: Number of the ledger's records, and their digest.
            others: Waits for the files of the other ranks.
        """
        finish = partial(
            checkpoint.finish,
            self._directory,
            step=step,
            policy_version=policy_version,
            frontier={"next_step": step},
            stepped=list(stepped),
            run_id=self._run_id,
            ledger=ledger,
            snapshot=snapshot,
            tokenizer=self._tokenizer,
        )
        self._writing = tasks.create_task(self._write(step, snapshot, others, finish))

    async def handle_evaluation(self, message: Evaluating | Evaluated) -> None:
        """Keep the checkpoint of a version in evaluation, and find the best by its result; see `Retention`."""
        match message:
            case Evaluating(policy_version=version):
                self._retention.evaluating(version)
            case Evaluated():
                self._retention.evaluated(message)
                await self._in_thread(self._retention.prune if self._has_written else self._retention.write_best)
                await self._copied()

    async def _write(
        self,
        step: int,
        snapshot: Snapshot,
        others: Callable[[], Awaitable[Mapping[str, FileEntry]]],
        finish: Callable[..., Path],
    ) -> None:
        began_s = self._clock()
        own = await self._in_thread(partial(checkpoint.write_part, self._directory, step, snapshot))
        path = await self._in_thread(partial(finish, parts={**own, **await others()}))
        self._has_written = True
        await self._in_thread(self._retention.prune)
        failpoint("trainer.checkpoint_written")
        log.info("checkpoint.written", path=str(path), seconds=round(self._clock() - began_s, 3))
        if await self._copied():
            await self._link.send(Commit(step - 1, str(path)))

    async def _copied(self) -> bool:
        """Copy the newest checkpoint and the name of the best to the broker's machine; False if copying has ended."""
        try:
            if self._sender:
                await unless(self._no_more_copies.wait(), self._sender.send())
        except OtherCameFirst:
            return False
        return True

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


# ── prompt files ──────────────────────────────────────────────────────────────────────────────
# Tokenizer, chat templates and picture processor of the base model, which each checkpoint has byte for byte.
#
# A loaded tokenizer would write other files than it was read from: of another class, and with tokens that the model
# does not know.


class PromptFiles:
    """
    Copies of a model directory's `prompt_files`, in memory: the directory may be gone when a checkpoint is written.

    Raises `ConfigError` if one cannot be read.
    """

    def __init__(self, model: Path) -> None:
        self._files = {str(path.relative_to(model)): _read(path) for path in prompt_files(model)}

    def save_pretrained(self, save_directory: Path, /) -> None:
        """Write the files into a folder."""
        for name, content in self._files.items():
            path = save_directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


# ── sharing ───────────────────────────────────────────────────────────────────────────────────
# The newest checkpoint of all machines of a trainer, on all of them.
#
#   each machine's reader ── step, digest of the manifest ─▶ all-gather ─▶ the newest, and who has it
#   its first owner ── file by file, chunk by chunk ─▶ broadcast ─▶ the readers of machines that lack it ─▶ their disks
#
# Machines that share a file system, or wrote the same checkpoint, copy nothing. A copy appears complete or not at
# all, as a checkpoint does, and replaces another one of the same step, which a group with other ranks may have
# written.

CHUNK_BYTES = 16 << 20


class Newest(NamedTuple):
    """Checkpoint that every rank goes on from, and those that are passed over."""

    folder: Path | None
    """Folder of the newest intact checkpoint; None if no rank has one."""
    damaged: list[DamagedCheckpoint]
    """Damaged checkpoints that are newer than the newest intact one of their machine."""


class FoundCheckpoint(Struct, frozen=True, order=True):
    """Newest intact checkpoint of one machine."""

    step: int = 0
    """Steps in the checkpoint; 0 if the machine has none."""
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
    own, passed_over = _newest(directory) if is_reader else (FoundCheckpoint(), [])
    encoded = ranks.all_gather(msgspec.msgpack.encode((own, passed_over)))
    reports = [
        msgspec.msgpack.decode(report, type=tuple[FoundCheckpoint, list[DamagedCheckpoint]]) for report in encoded
    ]
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


def _newest(directory: Path) -> tuple[FoundCheckpoint, list[DamagedCheckpoint]]:
    found, damaged = search(directory)
    if found is None:
        return FoundCheckpoint(), damaged
    manifest = (found[0] / MANIFEST).read_bytes()
    return FoundCheckpoint(found[1].step, hashlib.sha256(manifest).hexdigest()), damaged


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
    """Sizes of a checkpoint's files by their paths, as rank ``source`` tells them; the manifest is the last."""
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
