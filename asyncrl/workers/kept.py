"""
The starter's side of a worker: a program below a keeper, with pipes to it, ended with all that it has started.

    KeptProcess ──stdin, stdout──▶ worker            the keeper is its parent, and watches it: see `keeper`
"""

import asyncio
import os
import secrets
import shutil
import signal
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from asyncrl.workers import folders
from asyncrl.workers import keeper as keeper_module
from asyncrl.workers.child import module_command
from asyncrl.workers.folders import MARK
from asyncrl.workers.keeper import GuardLimits

END_S = 5.0
"""Seconds for the keeper to end its worker, before it is killed itself."""
CLOSED_S = 1.0
"""Seconds for a worker that has closed its pipe to exit."""
SWEEPS = 3
"""Looks at all processes of the machine: a process may start another one between a look and its end."""
CLOSE_LOOKS, CLOSE_LOOK_S = 200, 0.02
"""Attempts to remove a cgroup whose processes have been killed, and seconds between them."""
REPORT_BYTES = 4096


class ProcessMarks(Struct, frozen=True):
    """Marks that lead to the processes of a worker, and the pipe with the cause of its end."""

    mark: str
    report: int
    """Pipe on which the keeper tells the cause; not blocking."""
    group: Path | None
    folder: Path | None = None

    def cause(self) -> str:
        """Read why the worker ended; empty if the keeper has told no cause."""
        with suppress(BlockingIOError):
            return os.read(self.report, REPORT_BYTES).decode("utf-8", "replace")
        return ""

    def sweep(self) -> None:
        """Kill what a killed keeper has left; a process that has cleared its environment is found by cgroup only."""
        if self.group:
            keeper_module.kill(self.group)
        for _ in range(SWEEPS):
            folders.kill(folders.marked(self.mark))

    async def close(self) -> None:
        os.close(self.report)
        if self.folder:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        for _ in range(CLOSE_LOOKS):
            if not self.group or keeper_module.remove(self.group):
                return
            await asyncio.sleep(CLOSE_LOOK_S)


class KeptProcess:
    """
    One running worker; made by `start`.

    Its keeper leads a session of its own: an interrupt from the terminal does not reach it, and `kill` also ends the
    processes that the worker started.
    """

    def __init__(self, keeper: Process, traces: ProcessMarks, limits: GuardLimits) -> None:
        self._keeper = keeper
        self._traces: ProcessMarks | None = traces
        """None once the worker is killed."""
        self._limits = limits

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        limits: GuardLimits,
        output_bytes: int,
        variables: Mapping[str, str] | None = None,
        *,
        has_folder: bool = False,
    ) -> "KeptProcess":
        """
        Start a worker.

        Args:
            command: Its program, by path, with arguments.
            output_bytes: Bytes that it may print to stderr at once.
            variables: Added to the environment of this process.
            has_folder: Give it a temporary folder of its own (``TMPDIR``), which is removed with it.

        Raises:
            OSError: The keeper cannot be started.
            ConfigError: The folder cannot be made.
        """
        name = f"asyncrl-{limits.section}-{secrets.token_hex(8)}"
        folder = folders.make(name) if has_folder else None
        reader, report = os.pipe()
        os.set_blocking(reader, False)
        traces = ProcessMarks(f"{MARK}={name}", reader, keeper_module.make(name), folder.path if folder else None)
        place = (folder.path, folder.lock) if folder else ("", "")
        arguments = (report, output_bytes, *limits, traces.group or "", *place)
        try:
            keeper = await asyncio.create_subprocess_exec(
                *module_command("asyncrl.workers.keeper", *map(str, arguments), *command),
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
                pass_fds=(report, folder.lock) if folder else (report,),
                env={**os.environ, **(variables or {}), MARK: name, **({"TMPDIR": str(folder.path)} if folder else {})},
            )
        except BaseException:
            await traces.close()
            raise
        finally:
            os.close(report)
            if folder:
                folder.close()
        return cls(keeper, traces, limits)

    @property
    def is_alive(self) -> bool:
        return self._keeper.returncode is None

    @property
    def stdin(self) -> StreamWriter:
        assert self._keeper.stdin is not None, "started with a pipe"
        return self._keeper.stdin

    @property
    def stdout(self) -> StreamReader:
        assert self._keeper.stdout is not None, "started with a pipe"
        return self._keeper.stdout

    async def kill(self) -> None:
        """Kill the worker and everything below its keeper. Idempotent."""
        if self._traces is None:
            return
        traces, self._traces = self._traces, None
        try:
            self._ask_to_end()
            was_killed = bool(self._keeper.returncode)
            if was_killed or not await self._has_exited() or self._keeper.returncode != 0:
                with suppress(ProcessLookupError):
                    self._keeper.kill()
                traces.sweep()
                await self._has_exited()
        finally:
            await traces.close()

    async def cause(self) -> str:
        """Tell why there is no answer; waits for the keeper's account, which a living worker has none of."""
        try:
            async with asyncio.timeout(CLOSED_S):
                code = await self._keeper.wait()
        except TimeoutError:
            return (
                f"the function closed the pipe of the {self._limits.worker} or wrote to it, and its worker was killed; "
                f"it must leave file descriptors alone that it has not opened"
            )
        if told := self._traces.cause() if self._traces else "":
            return f"the {self._limits.worker} died: {told}; its last output is on stderr"
        return (
            f"the {self._limits.worker} was lost with its parent, which ended with code {code}; "
            f"the function must not send signals to processes that it has not started"
        )

    def _ask_to_end(self) -> None:
        if not self.stdin.is_closing():
            self.stdin.transport.abort()  # input that nobody reads any more is thrown away
        with suppress(ProcessLookupError):
            self._keeper.terminate()
            self._keeper.send_signal(signal.SIGCONT)  # the function may have stopped it

    async def _has_exited(self) -> bool:
        """Wait for the keeper, and for the end of the worker's output; False if that takes too long."""
        try:
            async with asyncio.timeout(END_S):
                while await self.stdout.read(1 << 16):
                    pass  # unread output would keep the pipe, and so the process object, open
                await self._keeper.wait()
        except TimeoutError:
            return False
        return True
