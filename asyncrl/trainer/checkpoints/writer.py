"""
Write checkpoints while the next steps train.

    train k ─▶ take ─▶ train k + 1 ─▶ train k + 2 ─▶ ...        compute thread
                  └──▶ hash, flush, rename ─▶ copy to the broker's machine, if needed ─▶ Commit(k)   this thread

One checkpoint is completed at a time; a further one waits, because it would only fill memory. The broker learns of a
checkpoint once it is complete, and keeps everything the run needs to resume from the one before until then.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.actor.waiting import OtherCameFirst, unless
from asyncrl.client.checkpoints import CheckpointSender
from asyncrl.config.sections.checkpoint import Checkpoint
from asyncrl.files.checkpoints import FileEntry
from asyncrl.log import get_logger
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trainer import Commit, Evaluating, Stepped
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.retention import Retention
from asyncrl.trainer.checkpoints.snapshot import Snapshot

log = get_logger()

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
        reach("trainer.checkpoint_written")
        log.info("checkpoint.written", path=str(path), seconds=round(self._clock() - began_s, 3))
        if await self._copied():
            await self._link.send(Commit(step - 1, str(path)))

    async def _copied(self) -> bool:
        """Have the broker's machine hold the newest checkpoint, and name the best; False if copying has ended."""
        try:
            if self._sender:
                await unless(self._no_more_copies.wait(), self._sender.send())
        except OtherCameFirst:
            return False
        return True

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
