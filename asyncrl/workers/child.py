"""
Child processes: start, watch, restart within a budget, and end in order: drain, stop, abort.

    start ─▶ running ─exit─▶ `AfterExit` ─restart─▶ budget left? ─yes─▶ start again, after a pause that doubles
                                  └─leave, end         └─no──▶ `keep_alive` returns

A child leads its own session, so that processes it started die with it. The kernel signals it when its parent dies.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from msgspec import Struct

from asyncrl.errors import BrokenInvariant, ConfigError, LedgerError, RunFailed, ToldToLeave
from asyncrl.files.access import appending
from asyncrl.files.atomic import needed
from asyncrl.foreign_text import shown
from asyncrl.workers.folders import has_ended

# ── relay ─────────────────────────────────────────────────────────────────────────────────────
# Output of a child process, copied to standard error as it arrives; its end is kept to explain an exit.

STANDARD_ERROR = 2
CHUNK_BYTES = 1 << 16


class Relay:
    """
    One pipe for each start of a child.

    Args:
        kept_bytes: Bytes of the end of the output that are kept.
    """

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._kept = b""
        self._pipe: int | None = None
        """Read end for the running child. Processes that the child started write here too and may outlive it."""

    @contextlib.contextmanager
    def end(self) -> Iterator[BinaryIO]:
        """The write end, open while the child is started."""
        self._close()
        self._kept = b""
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._pass_on)
        with os.fdopen(end, "wb") as writable:
            yield writable

    def tail(self) -> bytes:
        """The last ``kept_bytes`` of the output."""
        while self._pass_on():
            pass
        return self._kept

    def _pass_on(self) -> bool:
        """Copy one chunk; True if there may be more."""
        if self._pipe is None:
            return False
        try:
            output = os.read(self._pipe, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not output:
            self._close()
            return False
        with contextlib.suppress(OSError):  # A closed standard error is no reason to end children.
            os.write(STANDARD_ERROR, output)
        self._kept = (self._kept + output)[-self._kept_bytes :]
        return True

    def _close(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None


# ── supervise ─────────────────────────────────────────────────────────────────────────────────

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 10.0
LAST_WORDS_BYTES = 4096
"""Bytes of the end of a log that are searched for its last line."""
OURS = "asyncrl: "
"""Prefix of the line in which an asyncrl process names the cause of its exit."""
LATE_S = 2.0
"""Time for a child to leave that has only just been started."""
FINAL_CODES = (ConfigError.exit_code, LedgerError.exit_code, RunFailed.exit_code)
"""Exit codes after which a restart would end the same way."""

AfterExit = Literal["leave", "restart", "end"]
"""``leave``: the child ended as intended. ``restart``: start it again. ``end``: it failed, and would fail again."""


class Exit(Struct, frozen=True):
    """An unintended end of a child."""

    name: str
    code: int
    """Exit code; negative for a signal."""
    cause: str
    restarting: bool


class RestartBudget:
    """At most ``max_restarts`` within any ``window_s`` seconds."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._spent: deque[float] = deque()

    def spend(self, now_s: float) -> float | None:
        """Seconds to wait before the next restart, or None if there may be none."""
        while self._spent and now_s - self._spent[0] > self._window_s:
            self._spent.popleft()
        if len(self._spent) >= self._max_restarts:
            return None
        self._spent.append(now_s)
        doublings = min(len(self._spent) - 1, 10)
        return min(FIRST_PAUSE_S * 2.0**doublings, MAX_PAUSE_S)


def why(last_words: bytes) -> str:
    """The line in which an asyncrl process named its cause, else the last line; empty if there is no output."""
    lines = last_words.decode(errors="replace").strip().splitlines()
    # Processes that it started may write more after it has named the cause.
    ours = [line.removeprefix(OURS) for line in lines if line.startswith(OURS)]
    return shown((ours or lines or [""])[-1], LAST_WORDS_BYTES)


def module_command(module: str, *arguments: str) -> list[str]:
    """Command of a module of ours, in whose process no file of the working directory hides a library."""
    return [sys.executable, "-P", "-m", module, *arguments]


class ChildProcess(Protocol):
    """A process that was started: one of asyncio, or a copy of an importer."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""

    async def wait(self) -> int:
        """Wait for the exit code."""

    def terminate(self) -> None:
        """Send SIGTERM."""


Fork = Callable[[Sequence[str], Mapping[str, str], BinaryIO], Awaitable[ChildProcess | None]]
"""Starts a command, with its environment and output; None if it cannot. See `asyncrl.workers.forked`."""


class Child:
    """One child process."""

    def __init__(self, name: str, command: Sequence[str], log: Path | None, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        """File for its output; None for the standard error of this process."""
        self._relay = Relay(LAST_WORDS_BYTES)
        self._command = command
        self._environment = {**os.environ, **environment}
        self._process: ChildProcess | None = None
        self._log_began = 0
        """Size of the log in bytes when the running process was started."""
        self._session: int | None = None
        """Session id of the child; None after its end, when the kernel may reuse the number."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self, fork: Fork | None = None) -> None:
        """
        Start the process, by ``fork`` if that can; its output is appended to the log.

        Raises:
            RunFailed: The log cannot be written.
        """
        with self._output() as output:
            forked = await fork(self._command, self._environment, output) if fork else None
            self._process = forked or await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )
        self._session = self._process.pid

    async def wait(self) -> int:
        """Wait for the exit code, negative for a signal; then kill the processes that the child had started."""
        if self._process is None:
            raise BrokenInvariant(f"{self.name} was never started")
        code = await self._process.wait()
        self._kill_session()
        return code

    async def end(self, drain_s: float | None) -> None:
        """Send SIGTERM, and SIGKILL to the whole session after ``drain_s`` seconds; None waits. Idempotent."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), drain_s)
        self._kill_session()
        await self._process.wait()

    def last_line(self) -> str:
        """The cause that it named on exit, else its last line of output; without any, why its log takes none."""
        return why(self._last_words()) or self._log_problem()

    def _log_problem(self) -> str:
        if self.log is not None:
            try:
                with needed(self.log), appending(self.log) as log:
                    size = log.tell()
                    log.write(b"\n")
                    log.flush()
                    log.truncate(size)
            except RunFailed as error:
                return str(error)
        return ""

    def _last_words(self) -> bytes:
        if self.log is None:
            return self._relay.tail()
        try:
            with self.log.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES, self._log_began))
                return log.read()
        except OSError:
            return b""

    @contextlib.contextmanager
    def _output(self) -> Iterator[BinaryIO]:
        if self.log is None:
            with self._relay.end() as output:
                yield output
        else:
            with needed(self.log), appending(self.log) as log:
                self._log_began = log.tell()
                yield log

    def _kill_session(self) -> None:
        if self._session is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._session, signal.SIGKILL)
            self._session = None


async def keep_alive(
    child: Child,
    budget: RestartBudget,
    *,
    after_exit: Callable[[int], Awaitable[AfterExit]],
    exited: Callable[[Exit], Awaitable[None]],
    is_over: Callable[[], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> int:
    """
    Restart ``child`` whenever it ends, within ``budget``; return when it is not started again.

    Args:
        after_exit: Decides by the exit code.
        exited: Called for every unintended end.
        is_over: True once nothing is to be started any more.

    Returns:
        The last exit code.

    Raises:
        RunFailed: The child cannot be started.
    """
    while True:
        code = await child.wait()
        if (action := await after_exit(code)) == "leave":
            return code
        cause = describe_exit(code) + (f": {child.last_line()}" if code > 0 else "")
        pause_s = budget.spend(time.monotonic()) if action == "restart" else None
        await exited(Exit(child.name, code, cause, restarting=pause_s is not None))
        if pause_s is None:
            return code
        await sleep(pause_s)
        if is_over():
            return code
        await child.start()
        if is_over():  # The run ended while it started, and nobody else ends it.
            await child.end(drain_s=LATE_S)


def describe_exit(code: int) -> str:
    """``exited with 78``, ``left because of a signal``, or ``was killed by SIGKILL``."""
    if code == ToldToLeave.exit_code:
        return "left because of a signal"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def dies_with(parent: int) -> Callable[[], None] | None:
    """Function for the child to run before exec: an orphan would hold ports, memory and devices."""
    if sys.platform != "linux":
        return None
    # Resolved before the fork: in the child, a thread that is gone may hold the loader's lock.
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # The parent died before the line above.
            os.kill(os.getpid(), signal.SIGTERM)

    return die_with_parent


def is_orphaned(parent: int) -> bool:
    """
    True if ``parent``, with which this process was started to die, has died: any signal now may be the kernel's.

    Of a parent with several threads there may be several: the kernel sends one whenever a thread ends and the process
    passes to the next one.
    """
    if sys.platform != "linux" or (os.getppid() == parent and not has_ended(parent)):
        return False
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value != 0
