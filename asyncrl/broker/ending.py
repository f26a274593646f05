"""
The end of a run: why it ended, and who is told in which order.

    stop ──────▶ samples are written ─▶ Stop to all but spools ─▶ they store the rest, and leave ─▶ Stop to spools
    interrupt ─▶ the trainer saves a checkpoint, rollouts what they sample ─▶ the same
    suspend ───▶ every link is reset: the nodes keep their work, and wait for the next broker

`asyncrl stop` asks for the second, by `Interrupt` (``cli/stop.py``). Each role's actor hears of it in its own loop over
messages (`Drain`, `Stop`), a supervisor by `Finished`, a node that starts too late in `until_run_is_over`
(``runtime/sessions.py``), where signals to a process are heard, too.
"""

import asyncio
import contextlib
from collections.abc import Callable

from asyncrl.broker.metrics.run_files import RunFiles, outcome
from asyncrl.broker.metrics.sample_files import SampleFiles
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.errors import RunFailed, RunInterrupted
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Drain, Stop
from asyncrl.messages.spool import HOSTED_SPOOL
from asyncrl.messages.supervisor import Finished
from asyncrl.wire.link import Hub

INTERRUPT_S = 70.0
"""Seconds for the trainer of an interrupted run, and then for its rollouts, to store what they have."""
GOODBYE_S = 10.0
"""Seconds that nodes have to say Bye after the end of the run, before the broker leaves."""


class RunEnding:
    """End of a run or of its broker's process. The first call of `stop` or `suspend` counts."""

    def __init__(self, nodes: NodeBook, hub: Hub, files: RunFiles, samples: SampleFiles) -> None:
        self._nodes = nodes
        self._hub = hub
        self._files = files
        self._samples = samples
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_interrupted = False
        self.is_suspended = False
        """True once the broker was told to leave the run as it is."""
        self._suspended_by = ""
        """Reason for that."""
        self.cause = ""
        """Reason of the failure; empty if the run has not failed."""

    @property
    def has_come(self) -> bool:
        """True once the run has ended, or is left as it is."""
        return self._ended.is_set()

    @property
    def error(self) -> RunFailed | None:
        """Error of a run that ended early; None if the run has not failed."""
        if not self.cause:
            return None
        return RunInterrupted(self.cause) if self._is_interrupted else RunFailed(self.cause)

    async def wait(self) -> None:
        """Wait for the first call."""
        await self._ended.wait()

    def stop(self, cause: str = "", *, is_interrupted: bool = False) -> bool:
        """End the run; with a ``cause`` it has failed. False if it has ended before."""
        if self.has_come:
            return False
        self.cause, self._is_interrupted = cause, is_interrupted
        self._ended.set()
        return True

    def suspend(self, cause: str) -> None:
        """Leave the run as it is, for a broker that continues it later."""
        self.is_suspended, self._suspended_by = not self.has_come, cause
        self._ended.set()

    def nodes_changed(self) -> None:
        """Look again whether all nodes have left; called when one joins or leaves."""
        self._changed.set()

    async def say_goodbye(self) -> None:
        """Announce the end, and wait until all nodes have left; or reset their links, if the run goes on later."""
        if self.is_suspended:
            await self._samples.wait(GOODBYE_S)
            self._files.event("run.suspended", cause=self._suspended_by)
            for node in self._nodes.all():
                self._hub.forget(node.peer)
            return
        if self._is_interrupted:
            await self._drain()
        # A run that failed may be resumed, which writes what is missing; a complete one may not.
        await self._samples.wait(GOODBYE_S if self.cause else None)
        self.announce(lambda node: node.role != "spool")  # They may have something to store before they leave.
        await self._wait_without(lambda node: node.role != "spool", GOODBYE_S)
        self.announce(lambda node: node.role == "spool")
        await self._wait_without(lambda node: node.role == "spool" and node.name != HOSTED_SPOOL, GOODBYE_S)

    def announce(self, is_told: Callable[[Node], bool] = lambda _: True) -> None:
        """Write the summary, if that was not done, and tell nodes that the run is over."""
        self.cause = self._files.conclude(self.cause, is_interrupted=self._is_interrupted)
        for node in filter(is_told, self._nodes.all()):
            message: Message = Stop(self.cause or "the run is complete", failed=bool(self.cause))
            if node.role == "supervisor":
                message = Finished(outcome(self.cause, is_interrupted=self._is_interrupted), self.cause)
            self._hub.send(node.peer, message)

    async def _drain(self) -> None:
        """Have the trainer and the rollouts store what they have, and wait until they have left."""
        self._files.event("run.interrupted")
        for role in ("trainer", "rollout"):  # The trainer may need further batches, up to the end of a version.
            # Others leave nothing on disk when they are drained.
            holders = [node for node in self._nodes.with_role(role) if node.is_ready and not node.is_away]
            for node in holders:
                self._hub.send(node.peer, Drain(node.name))
            await self._wait_without(holders.__contains__, INTERRUPT_S)

    async def _wait_without(self, is_awaited: Callable[[Node], bool], deadline_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while any(map(is_awaited, self._nodes.all())):
                    self._changed.clear()
                    await self._changed.wait()
